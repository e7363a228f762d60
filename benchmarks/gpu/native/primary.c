/*
 * A primary context that is reset and taken again, with memory in it each time. Linked against nothing but libcuda.so.1.
 *
 *   primary [--rounds N] [--mib M]
 *
 * Out: one line of JSON: how many of the allocations were refused, and, once the driver's figures have had time to arrive, what cuMemGetInfo says is
 * used. Then it waits for the end of stdin. Errors: one sentence on stderr, status 1. NVIDIA's runtime does the same in inside/runtime_context.py.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { SETTLED_S = 2 };

static unsigned round_of(CUdevice device, size_t bytes)
{
    CUcontext context;
    CUdeviceptr block;
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return cuMemAlloc_v2(&block, bytes) != CUDA_SUCCESS;
}

int main(int words, char **word)
{
    unsigned rounds = 5, refused = 0;
    size_t mib = 1024, available, total;
    CUdevice device;
    for (int i = 1; i + 1 < words; i += 2) {
        if (strcmp(word[i], "--rounds") == 0)
            rounds = (unsigned)strtoul(word[i + 1], NULL, 10);
        else if (strcmp(word[i], "--mib") == 0)
            mib = strtoul(word[i + 1], NULL, 10);
    }
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    for (unsigned i = 0; i < rounds; i++) {
        refused += round_of(device, mib << 20);
        CHECK(cuDevicePrimaryCtxReset_v2(device));
    }
    refused += round_of(device, mib << 20);
    nanosleep(&(struct timespec){SETTLED_S, 0}, NULL);
    CHECK(cuMemGetInfo_v2(&available, &total));
    printf("{\"pid\": %d, \"refused\": %u, \"used\": %zu}\n", (int)getpid(), refused, total - available);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
