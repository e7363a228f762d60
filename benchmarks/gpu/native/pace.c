/*
 * Steps of one kernel each, every one waited for, and how long each took: what a training loop feels. Linked against nothing but libcuda.so.1.
 *
 *   pace [--seconds S] [--kernel-us U] [--round-ps P] [--from NS]
 *
 * Out: one line of JSON: the steps, their time (median, 99th percentile, longest) in milliseconds, the longest single launch call, the kernel's time by
 * two events around it (median), and the steps of each tenth of a second, counted from --from (CLOCK_MONOTONIC, ns) or from the beginning.
 * SIGTERM ends it early, with its line. Errors: one sentence on stderr, status 1.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "programs/program.h"

enum { MOST = 1 << 20, TENTHS = 1200 };

static const char kernel_text[] = WORK_MODULE_HEAD WORK_KERNEL("work", "wide");

static volatile sig_atomic_t asked_to_end;
static double steps_ms[MOST], events_ms[MOST];
static unsigned tenths[TENTHS];

static void end_early(int number)
{
    (void)number;
    asked_to_end = 1;
}

struct pace {
    CUstream stream;
    CUfunction function;
    CUevent before, after;
    uint64_t rounds, from;
    double longest_call_ms;
    unsigned steps;
};

static void step(struct pace *pace)
{
    void *parameters[] = {&pace->rounds};
    float event_ms = 0;
    uint64_t begin = now_ns();
    CHECK(cuEventRecord(pace->before, pace->stream));
    uint64_t call = now_ns();
    CHECK(cuLaunchKernel(pace->function, 264, 1, 1, 1024, 1, 1, 0, pace->stream, parameters, NULL));
    double call_ms = (double)(now_ns() - call) / 1e6;
    CHECK(cuEventRecord(pace->after, pace->stream));
    CHECK(cuStreamSynchronize(pace->stream));
    uint64_t end = now_ns();
    CHECK(cuEventElapsedTime(&event_ms, pace->before, pace->after));
    pace->longest_call_ms = call_ms > pace->longest_call_ms ? call_ms : pace->longest_call_ms;
    steps_ms[pace->steps] = (double)(end - begin) / 1e6;
    events_ms[pace->steps] = (double)event_ms;
    pace->steps++;
    uint64_t tenth = end > pace->from ? (end - pace->from) / UINT64_C(100000000) : 0;
    if (tenth < TENTHS)
        tenths[tenth]++;
}

static void prepare(struct pace *pace)
{
    open_device(0);
    pace->function = load_kernel(kernel_text, "work");
    CHECK(cuStreamCreate(&pace->stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&pace->before, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&pace->after, CU_EVENT_DEFAULT));
}

static void print(const struct pace *pace, double seconds)
{
    unsigned n = pace->steps, last = 0;
    qsort(steps_ms, n, sizeof steps_ms[0], by_size);
    qsort(events_ms, n, sizeof events_ms[0], by_size);
    for (unsigned i = 0; i < TENTHS; i++)
        last = tenths[i] != 0 ? i : last;
    printf("{\"steps\": %u, \"seconds\": %.6f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"longest_ms\": %.4f, \"longest_call_ms\": %.4f, \"event_ms\": %.4f, "
           "\"tenths\": [",
           n, seconds, steps_ms[n / 2], steps_ms[(size_t)n * 99 / 100], steps_ms[n - 1], pace->longest_call_ms, events_ms[n / 2]);
    for (unsigned i = 0; i <= last; i++)
        printf("%s%u", i == 0 ? "" : ", ", tenths[i]);
    printf("]}\n");
}

int main(int words, char **word)
{
    struct pace pace = {.rounds = 0};
    double seconds = 3, kernel_us = 1000, round_ps = 4000;
    for (int i = 1; i + 1 < words; i += 2) {
        double value = strtod(word[i + 1], NULL);
        if (strcmp(word[i], "--seconds") == 0)
            seconds = value;
        else if (strcmp(word[i], "--kernel-us") == 0)
            kernel_us = value;
        else if (strcmp(word[i], "--round-ps") == 0 && value >= 1)
            round_ps = value;
        else if (strcmp(word[i], "--from") == 0)
            pace.from = strtoull(word[i + 1], NULL, 10);
        else {
            fprintf(stderr, "pace: unknown option %s\n", word[i]);
            return 2;
        }
    }
    signal(SIGTERM, end_early);
    prepare(&pace);
    pace.rounds = (uint64_t)(kernel_us * 1e6 / round_ps);
    step(&pace);
    pace.steps = 0;
    pace.longest_call_ms = 0;
    memset(tenths, 0, sizeof tenths);
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    pace.from = pace.from == 0 ? begin : pace.from;
    do
        step(&pace);
    while (now_ns() < end && pace.steps < MOST && !asked_to_end);
    print(&pace, (double)(now_ns() - begin) / 1e9);
    return 0;
}
