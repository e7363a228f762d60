/*
 * Steps of kernels with something between them, each step waited for, and how many there were. Linked against nothing but libcuda.so.1.
 *
 *   mixed KIND [--seconds S] [--warmup S] [--kernels N] [--kernel-us U] [--mib M] [--round-ps P]
 *     plain      kernels alone                                   copy       a copy of M MiB from the host after each, in the same stream
 *     host       a host function of 5 ms after each, in it       wait       a host function in another stream, waited for
 *     grids      every kernel with a grid of its own             burst      in each of four streams a quarter of the kernels at once
 *     null       in four blocking streams by turns, every fifth in the NULL stream
 *     fill       fills of M MiB, no kernels                      duplicate  copies of M MiB on the device, no kernels
 *
 * Out: one line of JSON: steps, steps a second, kernels a second, and what percentage of the time the kernels would have taken alone (true where
 * --round-ps is). SIGTERM ends it early, with its line. Errors: one sentence on stderr, status 1.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"
#include "programs/program.h"

enum { STREAMS = 4, HOST_NS = 5000000, FIRST_GRID = 264, GRIDS = 1000000 };

static const char kernels_text[] = WORK_MODULE_HEAD WORK_KERNEL("wide", "wide") WORK_KERNEL("narrow", "narrow");

static volatile sig_atomic_t asked_to_end;

struct mixed {
    CUfunction wide, narrow;
    CUstream stream, other, streams[STREAMS];
    CUevent event;
    CUdeviceptr here, there;
    void *host;
    size_t bytes;
    uint64_t rounds;
    unsigned kernels, grids;
};

static void end_early(int number)
{
    (void)number;
    asked_to_end = 1;
}

static void launch(struct mixed *mixed, CUfunction function, unsigned grid, CUstream stream)
{
    void *parameters[] = {&mixed->rounds};
    CHECK(cuLaunchKernel(function, grid, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
}

static void work_on_the_host(void *nothing)
{
    const struct timespec length = {0, HOST_NS};
    (void)nothing;
    nanosleep(&length, NULL);
}

/* What lies behind a kernel of a step. */
static void behind_nothing(struct mixed *mixed)
{
    (void)mixed;
}

static void behind_copy(struct mixed *mixed)
{
    CHECK(cuMemcpyHtoDAsync_v2(mixed->here, mixed->host, mixed->bytes, mixed->stream));
}

static void behind_host(struct mixed *mixed)
{
    CHECK(cuLaunchHostFunc(mixed->stream, work_on_the_host, NULL));
}

static void behind_wait(struct mixed *mixed)
{
    CHECK(cuLaunchHostFunc(mixed->other, work_on_the_host, NULL));
    CHECK(cuEventRecord(mixed->event, mixed->other));
    CHECK(cuStreamWaitEvent(mixed->stream, mixed->event, 0));
}

/* A step. */
static void in_a_row(struct mixed *mixed, void (*behind)(struct mixed *))
{
    for (unsigned i = 0; i < mixed->kernels; i++) {
        launch(mixed, mixed->wide, FIRST_GRID, mixed->stream);
        if (i + 1 < mixed->kernels)
            behind(mixed);
    }
    CHECK(cuStreamSynchronize(mixed->stream));
}

static void new_grids(struct mixed *mixed, void (*behind)(struct mixed *))
{
    (void)behind;
    for (unsigned i = 0; i < mixed->kernels; i++)
        launch(mixed, mixed->wide, FIRST_GRID + mixed->grids++ % GRIDS, mixed->stream);
    CHECK(cuStreamSynchronize(mixed->stream));
}

static void through_null(struct mixed *mixed, void (*behind)(struct mixed *))
{
    (void)behind;
    for (unsigned i = 0; i < mixed->kernels; i++)
        launch(mixed, mixed->narrow, 1, i % (STREAMS + 1) == STREAMS ? NULL : mixed->streams[i % (STREAMS + 1)]);
    CHECK(cuCtxSynchronize());
}

static void bursts(struct mixed *mixed, void (*behind)(struct mixed *))
{
    (void)behind;
    for (unsigned stream = 0; stream < STREAMS; stream++) {
        for (unsigned i = 0; i < mixed->kernels / STREAMS; i++)
            launch(mixed, mixed->narrow, 1, mixed->streams[stream]);
    }
    CHECK(cuCtxSynchronize());
}

static void fills(struct mixed *mixed, void (*behind)(struct mixed *))
{
    (void)behind;
    for (unsigned i = 0; i < mixed->kernels; i++)
        CHECK(cuMemsetD32Async(mixed->here, i, mixed->bytes / 4, mixed->stream));
    CHECK(cuStreamSynchronize(mixed->stream));
}

static void duplicates(struct mixed *mixed, void (*behind)(struct mixed *))
{
    (void)behind;
    for (unsigned i = 0; i < mixed->kernels; i++)
        CHECK(cuMemcpyDtoDAsync_v2(mixed->there, mixed->here, mixed->bytes, mixed->stream));
    CHECK(cuStreamSynchronize(mixed->stream));
}

struct kind {
    const char *name;
    void (*step)(struct mixed *, void (*behind)(struct mixed *));
    void (*behind)(struct mixed *);
};

static const struct kind kinds[] = {
    {"plain", in_a_row, behind_nothing}, {"copy", in_a_row, behind_copy}, {"host", in_a_row, behind_host}, {"wait", in_a_row, behind_wait},
    {"grids", new_grids, NULL},          {"null", through_null, NULL},    {"burst", bursts, NULL},         {"fill", fills, NULL},
    {"duplicate", duplicates, NULL},
};

static void prepare(struct mixed *mixed)
{
    open_device(0);
    CUmodule module;
    CHECK(cuModuleLoadData(&module, kernels_text));
    CHECK(cuModuleGetFunction(&mixed->wide, module, "wide"));
    CHECK(cuModuleGetFunction(&mixed->narrow, module, "narrow"));
    CHECK(cuStreamCreate(&mixed->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&mixed->other, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < STREAMS; i++)
        CHECK(cuStreamCreate(&mixed->streams[i], CU_STREAM_DEFAULT));
    CHECK(cuEventCreate(&mixed->event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuMemAlloc_v2(&mixed->here, mixed->bytes));
    CHECK(cuMemAlloc_v2(&mixed->there, mixed->bytes));
    CHECK(cuMemAllocHost_v2(&mixed->host, mixed->bytes));
}

static unsigned long steps_for(struct mixed *mixed, const struct kind *kind, double seconds, double *took)
{
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    unsigned long steps = 0;
    do {
        kind->step(mixed, kind->behind);
        steps++;
    } while (now_ns() < end && !asked_to_end);
    *took = (double)(now_ns() - begin) / 1e9;
    return steps;
}

int main(int words, char **word)
{
    struct mixed mixed = {.kernels = 2};
    const struct kind *kind = NULL;
    double seconds = 2, warmup = 1, kernel_us = 50, round_ps = 4000, mib = 8, took;
    for (unsigned i = 0; words > 1 && i < sizeof kinds / sizeof kinds[0]; i++)
        kind = strcmp(kinds[i].name, word[1]) == 0 ? &kinds[i] : kind;
    for (int i = 2; i + 1 < words; i += 2) {
        double value = strtod(word[i + 1], NULL);
        if (strcmp(word[i], "--seconds") == 0)
            seconds = value;
        else if (strcmp(word[i], "--warmup") == 0)
            warmup = value;
        else if (strcmp(word[i], "--kernels") == 0 && value >= 1)
            mixed.kernels = (unsigned)value;
        else if (strcmp(word[i], "--kernel-us") == 0)
            kernel_us = value;
        else if (strcmp(word[i], "--mib") == 0 && value >= 1)
            mib = value;
        else if (strcmp(word[i], "--round-ps") == 0 && value >= 1)
            round_ps = value;
        else
            kind = NULL;
    }
    if (kind == NULL) {
        fprintf(stderr, "mixed: the first word must be a kind of work, and options have numbers\n");
        return 2;
    }
    signal(SIGTERM, end_early);
    mixed.bytes = (size_t)mib << 20;
    mixed.rounds = (uint64_t)(kernel_us * 1e6 / round_ps);
    prepare(&mixed);
    steps_for(&mixed, kind, warmup, &took);
    unsigned long steps = steps_for(&mixed, kind, seconds, &took);
    double kernels = (double)steps * mixed.kernels;
    printf("{\"steps\": %lu, \"seconds\": %.4f, \"per_second\": %.3f, \"kernels_per_second\": %.3f, \"kernel_percent\": %.3f}\n", steps, took,
           (double)steps / took, kernels / took, kernels * kernel_us / 1e4 / took);
    return 0;
}
