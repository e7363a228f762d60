/*
 * What small CUDA programs begin with, here, in benchmarks/gpu/native and in tests: a check of every call, the clock, a device, a kernel.
 *
 * In: libcuda.so.1 alone. Out: what was asked for, or one sentence on stderr and exit status 1. Not here: what a program does with them.
 * Invariant: a kernel of WORK_KERNEL takes ROUND_NS a round on the emulated driver, and the same work for each round on any GPU.
 */
#ifndef VCUDA_PROGRAMS_PROGRAM_H
#define VCUDA_PROGRAMS_PROGRAM_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda.h"

/*
 * A chain of multiply-adds, one a round, so long that the loop's length is the kernel's time; the store, which the value never asks for, is what keeps
 * a compiler from leaving all of it out. The comment tells the emulated driver how long a round takes, and whether (`extent`) the kernel is `wide`,
 * so that it fills the GPU, or `narrow`.
 */
enum { ROUND_NS = 4 };
#define MODULE_HEAD ".version 6.0\n.target sm_50\n.address_size 64\n"
#define WORK_MODULE_HEAD MODULE_HEAD ".visible .global .align 4 .f32 result;\n"
#define WORK_KERNEL(name, extent)                                                                                      \
    ".visible .entry " name "(.param .u64 rounds)\n{\n"                                                                \
    "// vcuda-emulator: ns = 4 * param 0 " extent "\n"                                                                 \
    ".reg .pred %p<3>; .reg .f32 %f<2>; .reg .b64 %rd<3>;\n"                                                           \
    "ld.param.u64 %rd1, [rounds];\nmov.f32 %f1, 0f3F800000;\nmov.u64 %rd2, 0;\n"                                       \
    "again:\nfma.rn.f32 %f1, %f1, %f1, %f1;\nadd.u64 %rd2, %rd2, 1;\n"                                                 \
    "setp.lt.u64 %p1, %rd2, %rd1;\n@%p1 bra again;\n"                                                                  \
    "setp.eq.f32 %p2, %f1, 0f00000000;\n@%p2 st.global.f32 [result], %f1;\nret;\n}\n"

#define CHECK(call) check((call), #call)

static inline void check(CUresult error, const char *what)
{
    const char *name = "unknown error";
    if (error == CUDA_SUCCESS)
        return;
    cuGetErrorName(error, &name);
    fprintf(stderr, "%s: %s failed: %s (%d)\n", program_invocation_short_name, what, name, (int)error);
    exit(1);
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Its primary context is current then. */
static inline CUdevice open_device(int ordinal)
{
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, ordinal));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return device;
}

static inline CUfunction load_kernel(const char *module_text, const char *name)
{
    CUmodule module;
    CUfunction function;
    CHECK(cuModuleLoadData(&module, module_text));
    CHECK(cuModuleGetFunction(&function, module, name));
    return function;
}

/* For qsort: doubles, the smallest first. */
static inline int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
