/*
 * What a call costs through libcuda.so.1 beside the same call of the driver behind it, libcuda-real.so.1, in one process and by turns. Without an
 * interposer in front there is no such name, and nothing to measure. Linked against nothing but libcuda.so.1.
 *
 *   overhead launch|graph|memory [--pairs N] [--calls N] [--rounds N] [--default-stream 1]
 *
 * Turns of --calls calls each, direct and through, by turns, so that whatever else the machine does touches both, and as many indirect calls of an empty
 * function and reads of CLOCK_MONOTONIC: what the machine can do. Out: one line of JSON: medians over all turns, in nanoseconds a call, and the
 * median of the differences between neighbours. `memory` is an allocation and its release. A launch is of --rounds rounds (4 ns each on the
 * emulated driver). By default that is longer than any launch call takes, so that the GPU always has work in both kinds of turn, and a turn is shorter than
 * the driver's queue: a call into an empty stream costs the driver twice as much, which would be taken for ours. Errors: one sentence on stderr, status 1.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "program.h"

enum { MOST_PAIRS = 10000, WARM = 3, BLOCK = 1 << 20 };

static const char kernel_text[] = WORK_MODULE_HEAD WORK_KERNEL("work", "wide");

typedef CUresult launch_function(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
typedef CUresult graph_function(CUgraphExec, CUstream);
typedef CUresult allocate_function(CUdeviceptr *, size_t);
typedef CUresult release_function(CUdeviceptr);

struct side {
    launch_function *launch;
    graph_function *graph;
    allocate_function *allocate;
    release_function *release;
};

struct bench {
    CUstream stream;
    CUfunction function;
    CUgraphExec exec;
    uint64_t rounds;
    unsigned calls, pairs;
    bool in_default;
};

/* dlsym's contract, which C does not know. */
static void find(void *driver, const char *name, void *function)
{
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "overhead: libcuda-real.so.1 has no %s\n", name);
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

static struct side direct_side(void)
{
    struct side side;
    void *driver = dlopen("libcuda-real.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (driver == NULL) {
        fprintf(stderr, "overhead: there is no libcuda-real.so.1 behind libcuda.so.1: nothing to compare\n");
        exit(1);
    }
    find(driver, "cuLaunchKernel", &side.launch);
    find(driver, "cuGraphLaunch", &side.graph);
    find(driver, "cuMemAlloc_v2", &side.allocate);
    find(driver, "cuMemFree_v2", &side.release);
    return side;
}

static void prepare(struct bench *bench)
{
    CUgraph graph;
    void *parameters[] = {&bench->rounds};
    open_device(0);
    bench->function = load_kernel(kernel_text, "work");
    CHECK(cuStreamCreate(&bench->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture_v2(bench->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchKernel(bench->function, 1, 1, 1, 32, 1, 1, 0, bench->stream, parameters, NULL));
    CHECK(cuStreamEndCapture(bench->stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&bench->exec, graph, 0));
    if (bench->in_default)
        bench->stream = NULL;
}

/* Nanoseconds a call. */
typedef double turn_function(const struct bench *bench, const struct side *side);

static double turn_launch(const struct bench *bench, const struct side *side)
{
    uint64_t rounds = bench->rounds;
    void *parameters[] = {&rounds};
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < bench->calls; i++)
        CHECK(side->launch(bench->function, 1, 1, 1, 32, 1, 1, 0, bench->stream, parameters, NULL));
    return (double)(now_ns() - begin) / bench->calls;
}

static double turn_graph(const struct bench *bench, const struct side *side)
{
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < bench->calls; i++)
        CHECK(side->graph(bench->exec, bench->stream));
    return (double)(now_ns() - begin) / bench->calls;
}

static double turn_memory(const struct bench *bench, const struct side *side)
{
    CUdeviceptr block;
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < bench->calls; i++) {
        CHECK(side->allocate(&block, BLOCK));
        CHECK(side->release(block));
    }
    return (double)(now_ns() - begin) / bench->calls;
}

static void nothing(void)
{
}

/* Which the compiler does not see through. */
static void (*volatile indirect)(void) = nothing;

static double turn_indirect(const struct bench *bench)
{
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < bench->calls; i++)
        indirect();
    return (double)(now_ns() - begin) / bench->calls;
}

static double turn_clock(const struct bench *bench)
{
    uint64_t begin = now_ns();
    for (unsigned i = 0; i < bench->calls; i++)
        now_ns();
    return (double)(now_ns() - begin) / bench->calls;
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof values[0], by_size);
    return values[count / 2];
}

static void measure(const struct bench *bench, turn_function *turn, const char *what)
{
    static double direct[MOST_PAIRS], through[MOST_PAIRS], extra[MOST_PAIRS], call[MOST_PAIRS], clock[MOST_PAIRS];
    const struct side ours = {cuLaunchKernel, cuGraphLaunch, cuMemAlloc_v2, cuMemFree_v2}, real = direct_side();
    for (unsigned i = 0; i < WARM + bench->pairs; i++) {
        unsigned place = i < WARM ? 0 : i - WARM;
        direct[place] = turn(bench, &real);
        CHECK(cuStreamSynchronize(bench->stream));
        through[place] = turn(bench, &ours);
        CHECK(cuStreamSynchronize(bench->stream));
        extra[place] = through[place] - direct[place];
        call[place] = turn_indirect(bench);
        clock[place] = turn_clock(bench);
    }
    double extra_ns = median(extra, bench->pairs);
    printf("{\"what\": \"%s\", \"direct_ns\": %.2f, \"through_ns\": %.2f, \"extra_ns\": %.2f, \"call_ns\": %.2f, \"clock_ns\": %.2f}\n", what,
           median(direct, bench->pairs), median(through, bench->pairs), extra_ns, median(call, bench->pairs), median(clock, bench->pairs));
}

static unsigned number(char **argument)
{
    char *end = NULL;
    unsigned long value = argument[1] == NULL ? 0 : strtoul(argument[1], &end, 10);
    if (end == NULL || *end != '\0' || value > 100000000) {
        fprintf(stderr, "overhead: %s needs a number\n", argument[0]);
        exit(2);
    }
    return (unsigned)value;
}

int main(int count, char **arguments)
{
    struct bench bench = {.rounds = 100, .calls = 1000, .pairs = 500};
    static const struct { const char *name; turn_function *turn; } turns[] = {{"launch", turn_launch}, {"graph", turn_graph}, {"memory", turn_memory}};
    for (char **argument = arguments + 2; count > 2 && *argument != NULL; argument += 2) {
        unsigned value = number(argument);
        if (strcmp(*argument, "--pairs") == 0 && value >= 1 && value <= MOST_PAIRS)
            bench.pairs = value;
        else if (strcmp(*argument, "--calls") == 0 && value >= 1)
            bench.calls = value;
        else if (strcmp(*argument, "--rounds") == 0)
            bench.rounds = value;
        else if (strcmp(*argument, "--default-stream") == 0)
            bench.in_default = value != 0;
        else {
            fprintf(stderr, "overhead: cannot use %s %u\n", *argument, value);
            return 2;
        }
    }
    for (unsigned i = 0; count > 1 && i < sizeof turns / sizeof turns[0]; i++) {
        if (strcmp(turns[i].name, arguments[1]) == 0) {
            prepare(&bench);
            measure(&bench, turns[i].turn, turns[i].name);
            return 0;
        }
    }
    fprintf(stderr, "overhead: the first word must be launch, graph or memory\n");
    return 2;
}
