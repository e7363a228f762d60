/*
 * ranks WAY RANKS STEPS KERNELS KERNEL_US [STALLED_STEP]: one of so many ranks of a job. A step is so many kernels and an exchange with the other ranks,
 * and is waited for; in the stalled step the thread sleeps for half a second first. The exchange is a small kernel, or a wide one: `cooperative`, or of the
 * `remote` memory domain.
 * Linked against nothing but libcuda.so.1; on the emulated driver. Out: one line of JSON: how long each step took, in milliseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "programs/program.h"

enum { TEXT = 4096, WIDE_BLOCKS = 264, FEW_BLOCKS = 8, STALL_NS = 500000000, MOST_STEPS = 1000 };

static const char work_text[] = WORK_MODULE_HEAD WORK_KERNEL("work", "wide");

static void make_text(char *text, const char *ranks)
{
    snprintf(text, TEXT, "%s.visible .entry exchange()\n{\n// vcuda-emulator: ns = 50000 narrow ranks = %s\nret;\n}\n", work_text, ranks);
}

static void launch_exchange(const char *way, CUfunction function, CUstream stream)
{
    CUlaunchAttribute remote = {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, .value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE};
    CUlaunchConfig config = {.gridDimX = WIDE_BLOCKS, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 512, .blockDimY = 1, .blockDimZ = 1, .hStream = stream,
                             .attrs = &remote, .numAttrs = 1};
    if (strcmp(way, "cooperative") == 0)
        CHECK(cuLaunchCooperativeKernel(function, WIDE_BLOCKS, 1, 1, 512, 1, 1, 0, stream, NULL));
    else if (strcmp(way, "remote") == 0)
        CHECK(cuLaunchKernelEx(&config, function, NULL, NULL));
    else
        CHECK(cuLaunchKernel(function, FEW_BLOCKS, 1, 1, 512, 1, 1, 0, stream, NULL, NULL));
}

static void stall(void)
{
    const struct timespec span = {.tv_nsec = STALL_NS};
    nanosleep(&span, NULL);
}

int main(int count, char **words)
{
    static char text[TEXT];
    static double steps[MOST_STEPS];
    if (count < 6)
        return 2;
    int step_count = atoi(words[3]), kernels = atoi(words[4]), stalled = count > 6 ? atoi(words[6]) : -1;
    uint64_t rounds = strtoull(words[5], NULL, 10) * 1000 / ROUND_NS;
    void *parameters[] = {&rounds};
    CUstream stream;
    make_text(text, words[2]);
    open_device(0);
    CUfunction work = load_kernel(text, "work"), exchange = load_kernel(text, "exchange");
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    uint64_t before = now_ns();
    for (int step = 0; step < step_count && step < MOST_STEPS; step++) {
        if (step == stalled)
            stall();
        for (int i = 0; i < kernels; i++)
            CHECK(cuLaunchKernel(work, WIDE_BLOCKS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        launch_exchange(words[1], exchange, stream);
        CHECK(cuStreamSynchronize(stream));
        uint64_t now = now_ns();
        steps[step] = (double)(now - before) / 1e6;
        before = now;
    }
    printf("{\"steps_ms\": [");
    for (int step = 0; step < step_count && step < MOST_STEPS; step++)
        printf("%s%.3f", step ? ", " : "", steps[step]);
    printf("]}\n");
    return 0;
}
