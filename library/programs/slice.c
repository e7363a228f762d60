/*
 * A small CUDA program that takes all it can get: device memory until it is refused, then the GPU's time for some seconds. It is
 * linked against nothing but libcuda.so.1 and runs on a real GPU and on the emulated driver alike.
 *
 *   slice [--seconds S] [--kernel-us U] [--block-mib M] [--hold-mib M] [--graph] [--sync] [--exact] [--after FILE]
 *
 * Memory is taken in blocks of --block-mib, then in ever smaller ones down to 2 MiB, so that what it got is all there was. It is freed before the
 * second part, but for --hold-mib, so that neighbours can have theirs. While it is held NVML, where there is one, is asked how that looks.
 * With --after it makes its context and then waits until the file exists, so that several begin at once.
 * Out: one line of JSON on stdout: what cuMemGetInfo said, how much memory it got before it was refused and with which error, and the
 * share of the GPU's time that it got. The share is work done over wall time: launches that ended, times the shortest time that the GPU took for one
 * (events), because a launch that shares the GPU takes longer than its work. With --exact a launch is worth what was asked of it, which
 * is true on the emulated driver alone; neighbours that never leave the GPU alone would otherwise hide how short a launch is.
 * Errors: one sentence on stderr, exit status 1.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "nvml.h"
#include "program.h"

enum { MAX_BLOCKS = 65536, WINDOW = 4, GRAPH_LAUNCHES = 4, THREADS = 128 };

#define SMALLEST (UINT64_C(2) << 20)

static const char kernel_text[] = WORK_MODULE_HEAD WORK_KERNEL("work", "wide");

struct settings {
    double seconds;
    uint64_t kernel_us, block_mib, hold_mib;
    bool graph, sync, exact;
    const char *after;
};

struct memory_result {
    size_t total, free, got;
    CUresult refusal;
    bool has_nvml;
    nvmlMemory_t nvml;
    unsigned nvml_processes;
};

struct time_result {
    uint64_t launches, unit_ns, wall_ns;
};

struct block {
    CUdeviceptr address;
    size_t size;
};

struct window {
    CUevent before[WINDOW], after[WINDOW];
};

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
        } else if (strcmp(*argument, "--after") == 0 && argument[1] != NULL) {
            settings.after = *++argument;
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

static void wait_for(const char *file)
{
    while (file != NULL && access(file, F_OK) != 0)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* What nvidia-smi would show of this GPU now. NVML is no dependency: where it cannot be asked, nothing is said. */
static void ask_nvml(struct memory_result *result, CUdevice device)
{
    char bus_id[32];
    nvmlDevice_t handle;
    nvmlProcessInfo_t processes[64];
    result->nvml_processes = sizeof processes / sizeof processes[0];
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL || cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != CUDA_SUCCESS)
        return;
    __typeof__(&nvmlInit_v2) init = (__typeof__(init))dlsym(library, "nvmlInit_v2");
    __typeof__(&nvmlDeviceGetHandleByPciBusId_v2) find = (__typeof__(find))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    __typeof__(&nvmlDeviceGetMemoryInfo) memory = (__typeof__(memory))dlsym(library, "nvmlDeviceGetMemoryInfo");
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) list =
        (__typeof__(list))dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (init != NULL && find != NULL && memory != NULL && list != NULL)
        result->has_nvml = init() == NVML_SUCCESS && find(bus_id, &handle) == NVML_SUCCESS && memory(handle, &result->nvml) == NVML_SUCCESS &&
                           list(handle, &result->nvml_processes, processes) == NVML_SUCCESS;
}

/* Allocates until the driver says no. */
static struct memory_result take_memory(const struct settings *settings, CUdevice device)
{
    static struct block blocks[MAX_BLOCKS];
    struct memory_result result = {.refusal = CUDA_SUCCESS};
    unsigned count = 0;
    CHECK(cuMemGetInfo_v2(&result.free, &result.total));
    for (size_t size = (size_t)settings->block_mib << 20; size >= SMALLEST && count < MAX_BLOCKS;) {
        CUresult error = cuMemAlloc_v2(&blocks[count].address, size);
        if (error == CUDA_SUCCESS) {
            blocks[count++].size = size;
            result.got += size;
        } else {
            result.refusal = error;
            size /= 2;
        }
    }
    ask_nvml(&result, device);
    for (size_t held = result.got; count > 0 && held > (size_t)settings->hold_mib << 20;) {
        held -= blocks[--count].size;
        CHECK(cuMemFree_v2(blocks[count].address));
    }
    return result;
}

static CUgraphExec make_graph(CUstream stream, CUfunction function, unsigned blocks, void **parameters)
{
    CUgraph graph;
    CUgraphExec exec;
    CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < GRAPH_LAUNCHES; i++)
        CHECK(cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
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

/* One block for each multiprocessor, so that all of the GPU has work. Keeps a few launches in flight (one with --sync) and counts those that ended in
 * time. */
static struct time_result take_time(const struct settings *settings, CUstream stream, CUfunction function, unsigned blocks)
{
    struct time_result result = {.unit_ns = UINT64_MAX};
    struct window window;
    uint64_t rounds = settings->kernel_us * 1000 / ROUND_NS;
    void *parameters[] = {&rounds};
    CUgraphExec exec = settings->graph ? make_graph(stream, function, blocks, parameters) : NULL;
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
            CHECK(cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL));
        CHECK(cuEventRecord(window.after[slot], stream));
    }
    result.wall_ns = now_ns() - begin;
    if (settings->exact)
        result.unit_ns = rounds * ROUND_NS * (exec != NULL ? GRAPH_LAUNCHES : 1);
    CHECK(cuStreamSynchronize(stream));
    return result;
}

static void print(const struct memory_result *memory, const struct time_result *time)
{
    const char *refusal = "unknown error";
    double busy = time->launches == 0 ? 0 : (double)time->launches * (double)time->unit_ns;
    cuGetErrorName(memory->refusal, &refusal);
    printf("{\"total_bytes\": %zu, \"free_bytes\": %zu, \"got_bytes\": %zu, \"refusal\": \"%s\", \"launches\": %llu, \"unit_ns\": %llu, "
           "\"seconds\": %.3f, \"share_percent\": %.2f, ",
           memory->total, memory->free, memory->got, refusal, (unsigned long long)time->launches,
           (unsigned long long)(time->launches == 0 ? 0 : time->unit_ns), (double)time->wall_ns / 1e9,
           time->wall_ns == 0 ? 0 : 100 * busy / (double)time->wall_ns);
    if (memory->has_nvml)
        printf("\"nvml\": {\"total_bytes\": %llu, \"used_bytes\": %llu, \"processes\": %u}}\n", memory->nvml.total, memory->nvml.used,
               memory->nvml_processes);
    else
        printf("\"nvml\": null}\n");
}

int main(int count, char **arguments)
{
    (void)count;
    struct settings settings = read_settings(arguments);
    int multiprocessors;
    CUstream stream;
    CUdevice device = open_device(0);
    CHECK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CUfunction function = load_kernel(kernel_text, "work");
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    wait_for(settings.after);
    struct memory_result memory = take_memory(&settings, device);
    struct time_result time = {0};
    if (settings.seconds > 0)
        time = take_time(&settings, stream, function, (unsigned)multiprocessors);
    print(&memory, &time);
    return fflush(stdout) == 0 ? 0 : 1;
}
