/*
 * A small CUDA program that takes all it can get: device memory until it is refused, then the GPU's time for some seconds. It is
 * linked against nothing but libcuda.so.1 and runs on a real GPU and on the emulated driver alike.
 *
 *   slice [--seconds S] [--kernel-us U] [--block-mib M] [--hold-mib M] [--graph] [--sync] [--exact]
 *
 * Out: one line of JSON on stdout: what cuMemGetInfo said, how much memory it got before it was refused and with which error, and the
 * share of the GPU's time that it got. The share is work done over wall time: launches that ended, times the shortest time that the GPU took for one
 * (events), because a launch that shares the GPU takes longer than its work. With --exact a launch is worth what was asked of it, which
 * is true on the emulated driver alone; neighbours that never leave the GPU alone would otherwise hide how short a launch is. Errors: one sentence on stderr, exit status 1.
 * It frees the memory before the second part, but for --hold-mib, so that neighbours can have theirs.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

enum { MAX_BLOCKS = 65536, WINDOW = 4, GRAPH_LAUNCHES = 4 };

/* A chain of multiply-adds, so long that the loop's length is the kernel's time. The comment tells the emulated driver how long. */
static const char kernel_text[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry work(.param .u64 rounds)\n{\n"
    "// vcuda-emulator: ns = 4 * param 0\n"
    ".reg .pred %p<2>; .reg .f32 %f<2>; .reg .b64 %rd<3>;\n"
    "ld.param.u64 %rd1, [rounds];\nmov.f32 %f1, 0f3F800000;\nmov.u64 %rd2, 0;\n"
    "again:\nfma.rn.f32 %f1, %f1, %f1, %f1;\nadd.u64 %rd2, %rd2, 1;\n"
    "setp.lt.u64 %p1, %rd2, %rd1;\n@%p1 bra again;\nret;\n}\n";

struct settings {
    double seconds;
    uint64_t kernel_us, block_mib, hold_mib;
    bool graph, sync, exact;
};

struct memory_result {
    size_t total, free, got;
    CUresult refusal;
};

struct time_result {
    uint64_t launches, unit_ns, wall_ns;
};

struct window {
    CUevent before[WINDOW], after[WINDOW];
};

static void fail(const char *what, CUresult error)
{
    const char *name = "unknown error";
    cuGetErrorName(error, &name);
    fprintf(stderr, "slice: %s failed: %s (%d)\n", what, name, (int)error);
    exit(1);
}

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult checked_ = (call);                                                                                    \
        if (checked_ != CUDA_SUCCESS)                                                                                  \
            fail(#call, checked_);                                                                                     \
    } while (0)

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static double number_after(char **argument, const char *name)
{
    char *end = NULL;
    errno = 0;
    double value = argument[1] == NULL ? -1 : strtod(argument[1], &end);
    if (argument[1] == NULL || errno != 0 || *end != '\0' || !(value >= 0 && value <= 1e9)) {
        fprintf(stderr, "slice: %s needs a number from 0 up, got %s\n", name, argument[1] == NULL ? "nothing" : argument[1]);
        exit(2);
    }
    return value;
}

static struct settings read_settings(char **argument)
{
    struct settings settings = {.seconds = 3, .kernel_us = 2000, .block_mib = 64};
    for (argument++; *argument != NULL; argument++) {
        if (strcmp(*argument, "--graph") == 0) {
            settings.graph = true;
        } else if (strcmp(*argument, "--sync") == 0) {
            settings.sync = true;
        } else if (strcmp(*argument, "--exact") == 0) {
            settings.exact = true;
        } else if (strcmp(*argument, "--seconds") == 0) {
            settings.seconds = number_after(argument++, "--seconds");
        } else if (strcmp(*argument, "--kernel-us") == 0) {
            settings.kernel_us = (uint64_t)number_after(argument++, "--kernel-us");
        } else if (strcmp(*argument, "--block-mib") == 0) {
            settings.block_mib = (uint64_t)number_after(argument++, "--block-mib");
        } else if (strcmp(*argument, "--hold-mib") == 0) {
            settings.hold_mib = (uint64_t)number_after(argument++, "--hold-mib");
        } else {
            fprintf(stderr, "slice: unknown option %s\n", *argument);
            exit(2);
        }
    }
    return settings;
}

/* Allocates until the driver says no. */
static struct memory_result take_memory(const struct settings *settings)
{
    static CUdeviceptr blocks[MAX_BLOCKS];
    struct memory_result result = {.refusal = CUDA_SUCCESS};
    size_t size = (size_t)settings->block_mib << 20;
    unsigned count = 0;
    CHECK(cuMemGetInfo_v2(&result.free, &result.total));
    while (size > 0 && count < MAX_BLOCKS && (result.refusal = cuMemAlloc_v2(&blocks[count], size)) == CUDA_SUCCESS)
        count++;
    result.got = size * count;
    while (count > 0 && size * count > (size_t)settings->hold_mib << 20)
        CHECK(cuMemFree_v2(blocks[--count]));
    return result;
}

static CUgraphExec make_graph(CUstream stream, CUfunction function, void **parameters)
{
    CUgraph graph;
    CUgraphExec exec;
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < GRAPH_LAUNCHES; i++)
        CHECK(cuLaunchKernel(function, 256, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    return exec;
}

static uint64_t took_ns(const struct window *window, unsigned slot)
{
    float milliseconds = 0;
    CHECK(cuEventSynchronize(window->after[slot]));
    CHECK(cuEventElapsedTime(&milliseconds, window->before[slot], window->after[slot]));
    return (uint64_t)((double)milliseconds * 1e6);
}

/* Keeps a few launches in flight (one with --sync) and counts those that ended in time. */
static struct time_result take_time(const struct settings *settings, CUstream stream, CUfunction function)
{
    struct time_result result = {.unit_ns = UINT64_MAX};
    struct window window;
    uint64_t rounds = settings->kernel_us * 1000 / 4;
    void *parameters[] = {&rounds};
    CUgraphExec exec = settings->graph ? make_graph(stream, function, parameters) : NULL;
    for (unsigned i = 0; i < WINDOW; i++) {
        CHECK(cuEventCreate(&window.before[i], CU_EVENT_DEFAULT));
        CHECK(cuEventCreate(&window.after[i], CU_EVENT_DEFAULT));
    }
    uint64_t depth = settings->sync ? 1 : WINDOW, sent = 0, begin = now_ns();
    uint64_t end = begin + (uint64_t)(settings->seconds * 1e9);
    while (now_ns() < end) {
        if (sent >= depth) {
            uint64_t took = took_ns(&window, (unsigned)((sent - depth) % WINDOW));
            result.unit_ns = took < result.unit_ns ? took : result.unit_ns;
            result.launches++;
        }
        unsigned slot = (unsigned)(sent++ % WINDOW);
        CHECK(cuEventRecord(window.before[slot], stream));
        if (exec != NULL)
            CHECK(cuGraphLaunch(exec, stream));
        else
            CHECK(cuLaunchKernel(function, 256, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        CHECK(cuEventRecord(window.after[slot], stream));
    }
    result.wall_ns = now_ns() - begin;
    if (settings->exact)
        result.unit_ns = rounds * 4 * (exec != NULL ? GRAPH_LAUNCHES : 1);
    CHECK(cuStreamSynchronize(stream));
    return result;
}

static void print(const struct memory_result *memory, const struct time_result *time)
{
    const char *refusal = "none";
    double busy = time->launches == 0 ? 0 : (double)time->launches * (double)time->unit_ns;
    cuGetErrorName(memory->refusal, &refusal);
    printf("{\"total_bytes\": %zu, \"free_bytes\": %zu, \"got_bytes\": %zu, \"refusal\": \"%s\", \"launches\": %llu, \"unit_ns\": %llu, "
           "\"seconds\": %.3f, \"share_percent\": %.2f}\n",
           memory->total, memory->free, memory->got, refusal, (unsigned long long)time->launches,
           (unsigned long long)(time->launches == 0 ? 0 : time->unit_ns), (double)time->wall_ns / 1e9,
           time->wall_ns == 0 ? 0 : 100 * busy / (double)time->wall_ns);
}

int main(int count, char **arguments)
{
    (void)count;
    struct settings settings = read_settings(arguments);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, kernel_text));
    CHECK(cuModuleGetFunction(&function, module, "work"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    struct memory_result memory = take_memory(&settings);
    struct time_result time = {0};
    if (settings.seconds > 0)
        time = take_time(&settings, stream, function);
    print(&memory, &time);
    return 0;
}
