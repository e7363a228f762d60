/*
 * Short kernels, each waited for, beside kernels that run all the time in streams of their own. Linked against nothing but libcuda.so.1.
 *
 *   endless [--beside N] [--seconds S] [--kernel-us U] [--round-ps P]
 *
 * Out: one line of JSON: the short launches a second, and how long they took (median, 99th percentile, longest), in milliseconds.
 * Errors: one sentence on stderr, status 1.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { MOST = 1 << 20, KNOWN = 20 };

static const char kernels_text[] = WORK_MODULE_HEAD WORK_KERNEL("endless", "narrow") WORK_KERNEL("small", "narrow");

static double took_ms[MOST];

static void launch(CUfunction function, CUstream stream, double us, double round_ps)
{
    uint64_t rounds = (uint64_t)(us * 1e6 / round_ps);
    void *parameters[] = {&rounds};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static double small(CUfunction function, CUstream stream, double us, double round_ps)
{
    uint64_t begin = now_ns();
    launch(function, stream, us, round_ps);
    CHECK(cuStreamSynchronize(stream));
    return (double)(now_ns() - begin) / 1e6;
}

int main(int words, char **word)
{
    double seconds = 4, kernel_us = 100, round_ps = 4000;
    unsigned beside = 1, count = 0;
    for (int i = 1; i + 1 < words; i += 2) {
        double value = strtod(word[i + 1], NULL);
        if (strcmp(word[i], "--beside") == 0)
            beside = (unsigned)value;
        else if (strcmp(word[i], "--seconds") == 0)
            seconds = value;
        else if (strcmp(word[i], "--kernel-us") == 0)
            kernel_us = value;
        else if (strcmp(word[i], "--round-ps") == 0 && value >= 1)
            round_ps = value;
        else {
            fprintf(stderr, "endless: unknown option %s\n", word[i]);
            return 2;
        }
    }
    CUmodule module;
    CUfunction endless, short_one;
    CUstream stream, own;
    open_device(0);
    CHECK(cuModuleLoadData(&module, kernels_text));
    CHECK(cuModuleGetFunction(&endless, module, "endless"));
    CHECK(cuModuleGetFunction(&short_one, module, "small"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < KNOWN; i++)
        small(short_one, stream, kernel_us, round_ps);
    for (unsigned i = 0; i < beside; i++) {
        CHECK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
        launch(endless, own, (seconds + 1) * 1e6, round_ps);
    }
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    while (now_ns() < end && count < MOST)
        took_ms[count++] = small(short_one, stream, kernel_us, round_ps);
    double took = (double)(now_ns() - begin) / 1e9;
    qsort(took_ms, count, sizeof took_ms[0], by_size);
    printf("{\"per_second\": %.2f, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"longest_ms\": %.4f}\n", count / took, took_ms[count / 2],
           took_ms[(size_t)count * 99 / 100], took_ms[count - 1]);
    fflush(stdout);
    _exit(0); /* the endless ones need not be waited for */
}
