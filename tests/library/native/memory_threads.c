/*
 * Allocations from many threads and processes at once, against libcuda.so.1 alone.
 *
 *   memory_threads hammer THREADS ROUNDS       random allocations and frees of every family, each with its own bytes; ends with everything given back
 *   memory_threads race THREADS MS FILE BYTES OWN   has its context, says "ready" and waits for a line; then allocates and frees large
 *                                              blocks; what all processes hold together, OWN each for its context, is counted in FILE and
 *                                              never exceeds BYTES
 *   memory_threads hold BYTES                  allocates, says "holding" and sleeps until it is killed
 *   memory_threads pace ROUNDS                 prints the nanoseconds of one cuMemAlloc_v2 and cuMemFree_v2 of 1 MiB
 *
 * Out: one line and 0; or what was wrong (on stderr where a call failed) and 1.
 */
#include <cuda.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory_race.h"

enum { LIVE = 24, MARK = 64 };

static const uint64_t unit = UINT64_C(2) << 20;
static CUcontext context;
static long rounds;

static size_t left(void)
{
    size_t unused, all;
    check(cuMemGetInfo_v2(&unused, &all), "cuMemGetInfo_v2");
    return unused;
}

struct block {
    int kind;                   /* 0: none */
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    size_t size;
    unsigned char mark;
};

enum { PLAIN = 1, POOLED, VIRTUAL, MANAGED_KIND, KINDS };

static CUresult make_virtual(struct block *block)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    block->size = (block->size / unit + 1) * unit;
    CUresult result = cuMemCreate(&block->handle, block->size, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    check(cuMemAddressReserve(&block->pointer, block->size, 0, 0, 0), "cuMemAddressReserve");
    check(cuMemMap(block->pointer, block->size, 0, block->handle, 0), "cuMemMap");
    check(cuMemSetAccess(block->pointer, block->size, &access, 1), "cuMemSetAccess");
    check(cuMemRelease(block->handle), "cuMemRelease");
    return CUDA_SUCCESS;
}

static CUresult make(struct block *block)
{
    switch (block->kind) {
    case PLAIN:
        return cuMemAlloc_v2(&block->pointer, block->size);
    case POOLED:
        return cuMemAllocAsync(&block->pointer, block->size, CU_STREAM_PER_THREAD);
    case VIRTUAL:
        return make_virtual(block);
    default:
        return cuMemAllocManaged(&block->pointer, block->size, CU_MEM_ATTACH_GLOBAL);
    }
}

static void end(struct block *block)
{
    switch (block->kind) {
    case POOLED:
        check(cuMemFreeAsync(block->pointer, CU_STREAM_PER_THREAD), "cuMemFreeAsync");
        break;
    case VIRTUAL:
        check(cuMemUnmap(block->pointer, block->size), "cuMemUnmap");
        check(cuMemAddressFree(block->pointer, block->size), "cuMemAddressFree");
        break;
    default:
        check(cuMemFree_v2(block->pointer), "cuMemFree_v2");
    }
    block->kind = 0;
}

/* The last bytes are the block's own; another's there means that two blocks overlap. */
static void sign(const struct block *block)
{
    unsigned char mark[MARK];
    size_t size = block->size < MARK ? block->size : MARK;
    memset(mark, block->mark, sizeof mark);
    check(cuMemcpyHtoDAsync_v2(block->pointer + block->size - size, mark, size, CU_STREAM_PER_THREAD), "cuMemcpyHtoDAsync_v2");
}

static void verify(const struct block *block)
{
    unsigned char mark[MARK];
    size_t size = block->size < MARK ? block->size : MARK;
    check(cuMemcpyDtoHAsync_v2(mark, block->pointer + block->size - size, size, CU_STREAM_PER_THREAD), "cuMemcpyDtoHAsync_v2");
    for (size_t i = 0; i < size; i++) {
        if (mark[i] == block->mark)
            continue;
        printf("a block of %zu bytes was overwritten\n", block->size);
        exit(1);
    }
}

static size_t random_size(unsigned *seed)
{
    static const size_t sizes[] = {1, 500, 4096, 70000, 1 << 20, (1 << 20) + 1, 5 << 20};
    return sizes[(unsigned)rand_r(seed) % (sizeof sizes / sizeof sizes[0])];
}

static void *hammer_one(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number;
    struct block blocks[LIVE] = {{0}};
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (long round = 0; round < rounds; round++) {
        struct block *block = &blocks[(unsigned)rand_r(&seed) % LIVE];
        if (block->kind != 0) {
            verify(block);
            end(block);
            continue;
        }
        int kind = PLAIN + (int)((unsigned)rand_r(&seed) % (KINDS - PLAIN));
        *block = (struct block){.kind = kind == MANAGED_KIND && round % 8 != 0 ? PLAIN : kind, .size = random_size(&seed)};
        block->mark = (unsigned char)rand_r(&seed);
        CUresult result = make(block);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            block->kind = 0;
        else
            check(result, "allocation");
        if (block->kind != 0)
            sign(block);
    }
    for (int i = 0; i < LIVE; i++) {
        if (blocks[i].kind != 0) {
            verify(&blocks[i]);
            end(&blocks[i]);
        }
    }
    check(cuStreamSynchronize(CU_STREAM_PER_THREAD), "cuStreamSynchronize");
    return NULL;
}

static int hammer(int threads)
{
    size_t before = left();
    in_threads(threads, hammer_one);
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    size_t after = left();
    printf(after == before ? "all given back\n" : "%zd bytes are gone\n", before - after);
    return after != before;
}

/* Who asks for a context after others have begun finds no room for it. */
static int race(int threads, uint64_t duration_ns, const char *path, uint64_t own)
{
    race_of.held = shared_count(path);
    race_of.context = context;
    race_of.blocks = 4;
    race_of.units = 200;
    atomic_fetch_add(race_of.held, own);
    puts("ready");
    fflush(stdout);
    getchar();
    race_of.deadline_ns = now_ns() + duration_ns;
    race_in(threads);
    atomic_fetch_sub(race_of.held, own);
    return 0;
}

static int pace(void)
{
    CUdeviceptr pointer;
    uint64_t begin = now_ns();
    for (long i = 0; i < rounds; i++) {
        check(cuMemAlloc_v2(&pointer, 1 << 20), "cuMemAlloc_v2");
        check(cuMemFree_v2(pointer), "cuMemFree_v2");
    }
    printf("%llu\n", (unsigned long long)((now_ns() - begin) / (uint64_t)rounds));
    return 0;
}

static _Noreturn void hold(uint64_t bytes)
{
    CUdeviceptr pointer;
    check(cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc_v2");
    puts("holding");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int count, char **words)
{
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (count == 4 && strcmp(words[1], "hammer") == 0) {
        rounds = strtol(words[3], NULL, 10);
        return hammer(atoi(words[2]));
    }
    if (count == 7 && strcmp(words[1], "race") == 0) {
        race_of.most = strtoull(words[5], NULL, 10);
        return race(atoi(words[2]), strtoull(words[3], NULL, 10) * 1000000, words[4], strtoull(words[6], NULL, 10));
    }
    if (count == 3 && strcmp(words[1], "hold") == 0)
        hold(strtoull(words[2], NULL, 10));
    if (count == 3 && strcmp(words[1], "pace") == 0) {
        rounds = strtol(words[2], NULL, 10);
        return pace();
    }
    return 2;
}
