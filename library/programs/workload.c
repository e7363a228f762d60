/*
 * Work of a known shape for a GPU, and how much of it was done: the programs whose share of the GPU's time benchmarks/sharing.py and tests measure.
 * It is linked against nothing but libcuda.so.1 and runs on a real GPU and on the emulated driver alike.
 *
 *   workload KIND [--seconds S] [--warmup S] [--round-ps P] [--device N]
 *     small       kernels of 10 us, without waiting                 medium    kernels of 1 ms, without waiting
 *     gemm        a kernel of 20 ms, waited for                     step      300 kernels of 100 us, then waited for
 *     graph       graphs of 20 ms (20 kernels), without waiting     eager     kernels of 10 us, 30 us apart
 *     long        a kernel of 400 ms, waited for                    streams   narrow kernels of 400 us in four streams
 *     calibrate   one kernel of a million rounds, to learn --round-ps on a real GPU
 *
 * Without waiting means: so far ahead that the GPU never runs dry, but no more than DEPTH_NS of work.
 * Out: one line of JSON: what was done between two marks in the stream, and the time between them on the GPU. `share_percent` is the one over the other,
 * true where --round-ps is (the emulated driver's is the default). SIGTERM ends it early, with its line. Errors: one sentence on stderr, status 1.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"
#include "program.h"

#define DEPTH_NS UINT64_C(60000000)
enum { STREAMS = 4, RING = 8 };

static const char kernels_text[] = WORK_MODULE_HEAD WORK_KERNEL("wide", "wide") WORK_KERNEL("narrow", "narrow");

struct kind {
    const char *name;
    uint64_t kernel_ns;
    unsigned per_wait;          /* launches before they are waited for; 0: never */
    uint64_t apart_ns;
    unsigned streams, kernels;  /* kernels: of a graph, 0: launched as they are */
};

static const struct kind kinds[] = {
    {"small", 10000, 0, 0, 1, 0},       {"medium", 1000000, 0, 0, 1, 0}, {"gemm", 20000000, 1, 0, 1, 0},
    {"step", 100000, 300, 0, 1, 0},     {"graph", 1000000, 0, 0, 1, 20}, {"eager", 10000, 0, 30000, 1, 0},
    {"long", 400000000, 1, 0, 1, 0},    {"streams", 400000, 0, 0, 4, 0}, {"calibrate", 4000000, 1, 0, 1, 0},
};

struct work {
    const struct kind *kind;
    double seconds, warmup;
    uint64_t round_ps, rounds;
    CUstream streams[STREAMS];
    CUfunction function;
    CUgraphExec graph;
    CUevent ring[RING];
    uint64_t launches;
};

static volatile sig_atomic_t asked_to_end;

static void end_early(int number)
{
    (void)number;
    asked_to_end = 1;
}

static void launch_kernel(struct work *work, CUstream stream)
{
    void *parameters[] = {&work->rounds};
    unsigned blocks = work->kind->streams > 1 ? 1 : 264;
    CHECK(cuLaunchKernel(work->function, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

static void make_graph(struct work *work)
{
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(work->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (unsigned i = 0; i < work->kind->kernels; i++)
        launch_kernel(work, work->streams[0]);
    CHECK(cuStreamEndCapture(work->streams[0], &graph));
    CHECK(cuGraphInstantiateWithFlags(&work->graph, graph, 0));
    CHECK(cuGraphDestroy(graph));
}

static void prepare(struct work *work, int ordinal)
{
    open_device(ordinal);
    work->function = load_kernel(kernels_text, work->kind->streams > 1 ? "narrow" : "wide");
    for (unsigned i = 0; i < work->kind->streams; i++)
        CHECK(cuStreamCreate(&work->streams[i], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < RING; i++)
        CHECK(cuEventCreate(&work->ring[i], CU_EVENT_DISABLE_TIMING));
    work->rounds = work->kind->kernel_ns * 1000 / work->round_ps;
    if (work->kind->kernels != 0)
        make_graph(work);
}

static void pause_until(uint64_t ns)
{
    struct timespec until = {.tv_sec = (time_t)(ns / UINT64_C(1000000000)), .tv_nsec = (long)(ns % UINT64_C(1000000000))};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static uint64_t unit_ns(const struct work *work)
{
    return work->kind->kernel_ns * (work->kind->kernels != 0 ? work->kind->kernels : 1);
}

/* The GPU keeps an eighth of the depth between two events; who is a whole ring ahead waits. */
static void keep_depth(struct work *work, CUstream stream)
{
    uint64_t every = DEPTH_NS / RING / unit_ns(work);
    every = every == 0 ? 1 : every;
    if (work->launches % every != 0)
        return;
    CUevent event = work->ring[work->launches / every % RING];
    CHECK(cuEventSynchronize(event));
    CHECK(cuEventRecord(event, stream));
}

static void work_once(struct work *work)
{
    CUstream stream = work->streams[work->launches % work->kind->streams];
    if (work->graph != NULL)
        CHECK(cuGraphLaunch(work->graph, stream));
    else
        launch_kernel(work, stream);
    work->launches++;
    if (work->kind->per_wait == 0)
        keep_depth(work, stream);
    else if (work->launches % work->kind->per_wait == 0)
        CHECK(cuStreamSynchronize(stream));
    if (work->kind->apart_ns != 0)
        pause_until(now_ns() + work->kind->apart_ns);
}

static void work_for(struct work *work, double seconds)
{
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    do
        work_once(work);
    while (now_ns() < end && !asked_to_end);
}

/* Streams after the first have nothing to do with its marks: they are waited for. */
static void mark(struct work *work, CUevent event)
{
    for (unsigned i = 1; i < work->kind->streams; i++)
        CHECK(cuStreamSynchronize(work->streams[i]));
    CHECK(cuEventRecord(event, work->streams[0]));
}

static void measure(struct work *work)
{
    CUevent begin, end;
    float milliseconds = 0;
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    work_for(work, work->warmup);
    mark(work, begin);
    uint64_t before = work->launches;
    work_for(work, work->seconds);
    mark(work, end);
    CHECK(cuEventSynchronize(end));
    CHECK(cuEventElapsedTime(&milliseconds, begin, end));
    double done = (double)(work->launches - before), seconds = (double)milliseconds / 1e3;
    double parallel = work->kind->streams;
    printf("{\"workload\": \"%s\", \"iterations\": %.0f, \"unit_ns\": %llu, \"seconds\": %.6f, \"per_second\": %.4f, \"share_percent\": %.3f}\n",
           work->kind->name, done, (unsigned long long)unit_ns(work), seconds, done / seconds,
           100 * done * (double)unit_ns(work) / parallel / 1e9 / seconds);
}

static void read_options(struct work *work, int *device, char **argument)
{
    for (; *argument != NULL; argument += 2) {
        double value = argument[1] == NULL ? -1 : strtod(argument[1], NULL);
        if (!(value >= 0)) {
            fprintf(stderr, "workload: %s needs a number\n", *argument);
            exit(2);
        }
        if (strcmp(*argument, "--seconds") == 0)
            work->seconds = value;
        else if (strcmp(*argument, "--warmup") == 0)
            work->warmup = value;
        else if (strcmp(*argument, "--round-ps") == 0 && value >= 1)
            work->round_ps = (uint64_t)value;
        else if (strcmp(*argument, "--device") == 0)
            *device = (int)value;
        else {
            fprintf(stderr, "workload: unknown option %s\n", *argument);
            exit(2);
        }
    }
}

int main(int count, char **arguments)
{
    struct work work = {.seconds = 3, .warmup = 0.5, .round_ps = 4000};
    int device = 0;
    for (unsigned i = 0; count > 1 && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, arguments[1]) == 0)
            work.kind = &kinds[i];
    }
    if (work.kind == NULL) {
        fprintf(stderr, "workload: the first word must be a kind of work\n");
        return 2;
    }
    read_options(&work, &device, arguments + 2);
    signal(SIGTERM, end_early);
    prepare(&work, device);
    measure(&work);
    return 0;
}
