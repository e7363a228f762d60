/*
 * A primary context that is reset and taken again, with memory in it each time. Linked against nothing but libcuda.so.1.
 *
 *   primary retain|table [--rounds N] [--mib M]
 *
 * `retain` takes it by cuDevicePrimaryCtxRetain, `table` as NVIDIA's runtime does, by a function of the driver's table 6BD5FB6C-5BF4-E74A-8987-D93912FD9DF9
 * (its third word; so says the description in ZLUDA). Out: one line of JSON: how many of the allocations were refused, and, once the driver's figures
 * have had time to arrive, what cuMemGetInfo says is used. Then it waits for the end of stdin. `cannot` in its place: the driver has no such table.
 * Errors: one sentence on stderr, status 1.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { PLACE = 2, SETTLED_S = 2 };

typedef CUresult primary_function(CUcontext *, CUdevice);

static primary_function *by_table(void)
{
    static const unsigned char name[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    const void *table = NULL;
    CUuuid uuid;
    primary_function *found = NULL;
    memcpy(&uuid, name, sizeof name);
    if (cuGetExportTable(&table, &uuid) == CUDA_SUCCESS && table != NULL)
        memcpy(&found, (const char *)table + PLACE * sizeof(void *), sizeof found);
    return found;
}

static unsigned round_of(primary_function *take, CUdevice device, size_t bytes)
{
    CUcontext context;
    CUdeviceptr block;
    CHECK(take(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return cuMemAlloc_v2(&block, bytes) != CUDA_SUCCESS;
}

int main(int words, char **word)
{
    unsigned rounds = 5, refused = 0;
    size_t mib = 1024, available, total;
    CUdevice device;
    for (int i = 2; i + 1 < words; i += 2) {
        if (strcmp(word[i], "--rounds") == 0)
            rounds = (unsigned)strtoul(word[i + 1], NULL, 10);
        else if (strcmp(word[i], "--mib") == 0)
            mib = strtoul(word[i + 1], NULL, 10);
    }
    if (words < 2 || (strcmp(word[1], "retain") != 0 && strcmp(word[1], "table") != 0)) {
        fprintf(stderr, "primary: the first word must be retain or table\n");
        return 2;
    }
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    primary_function *take = strcmp(word[1], "table") == 0 ? by_table() : cuDevicePrimaryCtxRetain;
    if (take == NULL) {
        printf("{\"cannot\": \"the driver has no table 6BD5FB6C, by which the runtime takes the primary context\"}\n");
        return 0;
    }
    for (unsigned i = 0; i < rounds; i++) {
        refused += round_of(take, device, mib << 20);
        CHECK(cuDevicePrimaryCtxReset_v2(device));
    }
    refused += round_of(take, device, mib << 20);
    nanosleep(&(struct timespec){SETTLED_S, 0}, NULL);
    CHECK(cuMemGetInfo_v2(&available, &total));
    printf("{\"pid\": %d, \"refused\": %u, \"used\": %zu}\n", (int)getpid(), refused, total - available);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
