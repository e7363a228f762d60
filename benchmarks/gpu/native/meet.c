/*
 * One rank of two: steps of kernels, each ended by a kernel that waits on the GPU for the same kernel of the other rank, as a collective does.
 * Linked against nothing but libcuda.so.1.
 *
 *   meet RANK FILE [--steps N] [--kernels N] [--kernel-us U] [--round-ps P] [--stall-ms M] [--stall-at N]
 *
 * FILE holds both ranks' flags; both processes map it and register it with the driver, so that their kernels see it. A kernel that meets nobody ends
 * after 20 s. Before its first step rank 1 waits half a second, so that the first step of rank 0 tells whether kernels wait at all.
 * Out: a line of JSON for each step, with its milliseconds. Errors: one sentence on stderr, status 1.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { PAGE = 4096, APART = 256, LATE_MS = 500 };

static const char kernels_text[] = WORK_MODULE_HEAD WORK_KERNEL(
    "work", "wide") ".visible .entry meet(.param .u64 own, .param .u64 other, .param .u32 turn)\n{\n"
                    "// vcuda-emulator: ns = 10000 narrow ranks = 2\n"
                    ".reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %rd<6>;\n"
                    "ld.param.u64 %rd1, [own];\nld.param.u64 %rd2, [other];\nld.param.u32 %r1, [turn];\n"
                    "st.volatile.global.u32 [%rd1], %r1;\nmembar.sys;\nmov.u64 %rd3, %globaltimer;\n"
                    "again:\nld.volatile.global.u32 %r2, [%rd2];\nsetp.ge.u32 %p1, %r2, %r1;\n@%p1 bra met;\n"
                    "mov.u64 %rd4, %globaltimer;\nsub.u64 %rd5, %rd4, %rd3;\nsetp.lt.u64 %p2, %rd5, 20000000000;\n@%p2 bra again;\n"
                    "met:\nret;\n}\n";

struct rank {
    int number;
    CUfunction work, meet;
    CUstream stream;
    CUdeviceptr own, other;
    uint64_t rounds;
    unsigned kernels;
};

static void pause_ms(unsigned ms)
{
    const struct timespec length = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&length, NULL);
}

static void share_flags(struct rank *rank, const char *file)
{
    CUdeviceptr flags;
    int descriptor = open(file, O_RDWR);
    void *page = descriptor < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED) {
        fprintf(stderr, "meet: %s cannot be mapped\n", file);
        exit(1);
    }
    close(descriptor);
    CHECK(cuMemHostRegister_v2(page, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE));
    CHECK(cuMemHostGetDevicePointer_v2(&flags, page, 0));
    rank->own = flags + (CUdeviceptr)(rank->number * APART);
    rank->other = flags + (CUdeviceptr)((1 - rank->number) * APART);
}

static void prepare(struct rank *rank, const char *file)
{
    CUmodule module;
    open_device(0);
    CHECK(cuModuleLoadData(&module, kernels_text));
    CHECK(cuModuleGetFunction(&rank->work, module, "work"));
    CHECK(cuModuleGetFunction(&rank->meet, module, "meet"));
    CHECK(cuStreamCreate(&rank->stream, CU_STREAM_NON_BLOCKING));
    share_flags(rank, file);
}

static double step(struct rank *rank, uint32_t turn)
{
    void *work[] = {&rank->rounds}, *meet[] = {&rank->own, &rank->other, &turn};
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < rank->kernels; i++)
        CHECK(cuLaunchKernel(rank->work, 264, 1, 1, 1024, 1, 1, 0, rank->stream, work, NULL));
    CHECK(cuLaunchKernel(rank->meet, 1, 1, 1, 1, 1, 1, 0, rank->stream, meet, NULL));
    CHECK(cuStreamSynchronize(rank->stream));
    return (double)(now_ns() - begin) / 1e6;
}

int main(int words, char **word)
{
    struct rank rank = {.kernels = 20};
    double kernel_us = 250, round_ps = 4000;
    unsigned steps = 60, stall_ms = 0, stall_at = 0;
    for (int i = 3; i + 1 < words; i += 2) {
        double value = strtod(word[i + 1], NULL);
        if (strcmp(word[i], "--steps") == 0)
            steps = (unsigned)value;
        else if (strcmp(word[i], "--kernels") == 0)
            rank.kernels = (unsigned)value;
        else if (strcmp(word[i], "--kernel-us") == 0)
            kernel_us = value;
        else if (strcmp(word[i], "--round-ps") == 0 && value >= 1)
            round_ps = value;
        else if (strcmp(word[i], "--stall-ms") == 0)
            stall_ms = (unsigned)value;
        else if (strcmp(word[i], "--stall-at") == 0)
            stall_at = (unsigned)value;
        else
            words = 0;
    }
    if (words < 3 || (strcmp(word[1], "0") != 0 && strcmp(word[1], "1") != 0)) {
        fprintf(stderr, "meet: the first words must be a rank, 0 or 1, and a file; options have numbers\n");
        return 2;
    }
    rank.number = word[1][0] - '0';
    rank.rounds = (uint64_t)(kernel_us * 1e6 / round_ps);
    prepare(&rank, word[2]);
    if (rank.number == 1)
        pause_ms(LATE_MS);
    for (uint32_t turn = 1; turn <= steps; turn++) {
        if (turn == stall_at && rank.number == 0)
            pause_ms(stall_ms);
        printf("{\"ms\": %.3f}\n", step(&rank, turn));
        fflush(stdout);
    }
    return 0;
}
