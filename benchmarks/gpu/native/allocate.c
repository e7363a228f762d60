/*
 * Takes device memory in blocks until it is refused, in one of the ways that there are. Linked against nothing but libcuda.so.1.
 *
 *   allocate malloc|async|managed|vmm [--block-mib N] [--cycles N] [--hold 1|2]
 *
 * Out: one line of JSON: what was there, what it got, the refusal, and after --cycles rounds of giving blocks back and taking them again: how many
 * of these were refused, what is free when all is given back, and whether a kernel still runs. With --hold 1 it prints a line with what it has and
 * waits: each line of stdin makes it try for more and print again; the end of stdin ends it. With --hold 2 the first line comes before it has taken
 * anything but its context. Errors: one sentence on stderr, status 1.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "programs/program.h"

enum { MOST = 65536, IN_A_ROUND = 8 };

static const char kernel_text[] = MODULE_HEAD ".visible .entry work()\n{\n// vcuda-emulator: ns = 1000\nret;\n}\n";

struct way {
    const char *name;
    CUresult (*take)(uint64_t *block, size_t size);
    CUresult (*give)(uint64_t block);
};

static CUdevice device;
static CUstream stream;
static uint64_t blocks[MOST];
static unsigned count;

static CUresult take_plain(uint64_t *block, size_t size)
{
    CUdeviceptr pointer = 0;
    CUresult error = cuMemAlloc_v2(&pointer, size);
    *block = pointer;
    return error;
}

static CUresult take_async(uint64_t *block, size_t size)
{
    CUdeviceptr pointer = 0;
    CUresult error = cuMemAllocAsync(&pointer, size, stream);
    *block = pointer;
    return error;
}

static CUresult take_managed(uint64_t *block, size_t size)
{
    CUdeviceptr pointer = 0;
    CUresult error = cuMemAllocManaged(&pointer, size, CU_MEM_ATTACH_GLOBAL);
    *block = pointer;
    return error;
}

static CUresult take_physical(uint64_t *block, size_t size)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemGenericAllocationHandle handle = 0;
    CUresult error = cuMemCreate(&handle, size, &prop, 0);
    *block = handle;
    return error;
}

static CUresult give_plain(uint64_t block)
{
    return cuMemFree_v2(block);
}

static CUresult give_async(uint64_t block)
{
    CUresult error = cuMemFreeAsync(block, stream);
    return error == CUDA_SUCCESS ? cuStreamSynchronize(stream) : error;
}

static CUresult give_physical(uint64_t block)
{
    return cuMemRelease(block);
}

static const struct way ways[] = {
    {"malloc", take_plain, give_plain},
    {"async", take_async, give_async},
    {"managed", take_managed, give_plain},
    {"vmm", take_physical, give_physical},
};

static CUresult fill(const struct way *way, size_t size)
{
    CUresult error = CUDA_SUCCESS;
    while (count < MOST && (error = way->take(&blocks[count], size)) == CUDA_SUCCESS)
        count++;
    return error;
}

/* Blocks go and come; how many did not come back. */
static unsigned cycle(const struct way *way, size_t size, unsigned rounds)
{
    unsigned refused = 0;
    for (unsigned round = 0; round < rounds; round++) {
        unsigned wanted = count < IN_A_ROUND ? count : IN_A_ROUND;
        for (unsigned i = 0; i < wanted; i++)
            CHECK(way->give(blocks[--count]));
        for (unsigned i = 0; i < wanted; i++) {
            if (way->take(&blocks[count], size) == CUDA_SUCCESS)
                count++;
            else
                refused++;
        }
    }
    return refused;
}

static void give_all(const struct way *way)
{
    CUmemoryPool pool;
    while (count > 0)
        CHECK(way->give(blocks[--count]));
    if (way->take == take_async && cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS)
        CHECK(cuMemPoolTrimTo(pool, 0));
}

static int kernel_runs(void)
{
    CUmodule module;
    CUfunction function;
    return cuModuleLoadData(&module, kernel_text) == CUDA_SUCCESS && cuModuleGetFunction(&function, module, "work") == CUDA_SUCCESS &&
           cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == CUDA_SUCCESS && cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

static void hold(const struct way *way, size_t size, bool at_once)
{
    int letter;
    do {
        CUresult refusal = at_once ? fill(way, size) : CUDA_SUCCESS;
        at_once = true;
        printf("{\"pid\": %d, \"got\": %zu, \"refusal\": %d}\n", (int)getpid(), size * count, (int)refusal);
        fflush(stdout);
        while ((letter = getchar()) != '\n' && letter != EOF)
            ;
    } while (letter != EOF);
}

static void once(const struct way *way, size_t size, unsigned cycles)
{
    size_t free_before, total, free_full, free_after;
    CHECK(cuMemGetInfo_v2(&free_before, &total));
    CUresult refusal = fill(way, size);
    size_t got = size * count;
    CHECK(cuMemGetInfo_v2(&free_full, &total));
    unsigned refused = cycle(way, size, cycles);
    give_all(way);
    CHECK(cuMemGetInfo_v2(&free_after, &total));
    printf("{\"total\": %zu, \"free_before\": %zu, \"free_full\": %zu, \"free_after\": %zu, \"got\": %zu, \"refusal\": %d, \"refused_again\": %u, "
           "\"kernel_runs\": %d}\n",
           total, free_before, free_full, free_after, got, (int)refusal, refused, kernel_runs());
}

static void start(void)
{
    device = open_device(0);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

int main(int words, char **word)
{
    const struct way *way = NULL;
    unsigned long block_mib = 64, cycles = 100, wait = 0;
    for (unsigned i = 0; words > 1 && i < sizeof ways / sizeof ways[0]; i++)
        way = strcmp(ways[i].name, word[1]) == 0 ? &ways[i] : way;
    for (int i = 2; i + 1 < words; i += 2) {
        unsigned long value = strtoul(word[i + 1], NULL, 10);
        if (strcmp(word[i], "--block-mib") == 0)
            block_mib = value;
        else if (strcmp(word[i], "--cycles") == 0)
            cycles = value;
        else if (strcmp(word[i], "--hold") == 0)
            wait = value;
    }
    if (way == NULL || block_mib == 0) {
        fprintf(stderr, "allocate: the first word must be malloc, async, managed or vmm, and blocks have 1 MiB at least\n");
        return 2;
    }
    start();
    if (wait != 0)
        hold(way, (size_t)block_mib << 20, wait == 1);
    else
        once(way, (size_t)block_mib << 20, (unsigned)cycles);
    return 0;
}
