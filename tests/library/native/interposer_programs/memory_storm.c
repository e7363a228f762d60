/*
 * Many threads or processes that allocate under one limit; linked against nothing but libcuda.so.1.
 *
 *   memory_storm storm THREADS ROUNDS  random cuMemAlloc_v2 and cuMemFree_v2; frees all, says "done" and waits for a line on stdin
 *   memory_storm fit BYTES ROUNDS      takes and frees BYTES, again and again; a refusal is an error
 *   memory_storm race MS FILE BYTES    says "ready", waits for a line on stdin, then takes all it can get and frees it, again and again; what
 *                                      all processes hold is counted in FILE, never above BYTES
 *   memory_storm fork BYTES            takes BYTES in a child that was forked before CUDA was used, and after it in the parent
 *   memory_storm churn [ROUNDS]        every family in four threads, until it is killed or so often, refusals or not
 *
 * Out: a line, and 0; or what was wrong (on stderr where a call failed), and 1.
 */
#include <cuda.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../memory_race.h"

enum { LIVE = 16, FAMILIES = 6 };

static const size_t unit = (size_t)2 << 20;
static CUcontext context;
static long rounds;

static void begin(void)
{
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static void *storm_one(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number;
    CUdeviceptr live[LIVE] = {0};
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (long round = 0; round < rounds; round++) {
        CUdeviceptr *one = &live[(unsigned)rand_r(&seed) % LIVE];
        if (*one != 0) {
            check(cuMemFree_v2(*one), "cuMemFree_v2");
            *one = 0;
            continue;
        }
        size_t size = round % 16 == 0 ? unit * (1 + (unsigned)rand_r(&seed) % 4) : 1 + (unsigned)rand_r(&seed) % 100000;
        CUresult result = cuMemAlloc_v2(one, size);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            *one = 0;
        else
            check(result, "cuMemAlloc_v2");
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i] != 0)
            check(cuMemFree_v2(live[i]), "cuMemFree_v2");
    return NULL;
}

static int storm(int threads)
{
    begin();
    in_threads(threads, storm_one);
    puts("done");
    fflush(stdout);
    getchar();
    return 0;
}

static int fit(size_t bytes)
{
    begin();
    for (long round = 0; round < rounds; round++) {
        CUdeviceptr pointer;
        check(cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc_v2");
        check(cuMemFree_v2(pointer), "cuMemFree_v2");
    }
    puts("it fits");
    return 0;
}

static int race(const char *path, uint64_t duration_ns)
{
    race_of.held = shared_count(path);
    begin();
    race_of.context = context;
    race_of.blocks = LIVE;
    race_of.units = 24;
    race_of.pauses = true;
    puts("ready");
    fflush(stdout);
    getchar();
    race_of.deadline_ns = now_ns() + duration_ns;
    race_in(2);
    return 0;
}

static int forked(size_t bytes)
{
    int status;
    CUdeviceptr pointer;
    pid_t child = fork();
    if (child == 0) {
        begin();
        check(cuMemAlloc_v2(&pointer, bytes), "the child's cuMemAlloc_v2");
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (status != 0)
        return 1;
    begin();
    check(cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc_v2");
    child = fork();
    if (child == 0)     /* a driver that was used before a fork is of no use after it, and what the parent has is not the child's to free */
        _exit(cuMemFree_v2(pointer) == CUDA_SUCCESS);
    waitpid(child, &status, 0);
    check(cuMemFree_v2(pointer), "cuMemFree_v2");
    check(cuMemAlloc_v2(&pointer, bytes), "cuMemAlloc_v2");
    puts(status == 0 ? "both" : "the child freed it");
    fflush(stdout);
    getchar();
    return status != 0;
}

static void churn_virtual(size_t size)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    if (cuMemCreate(&handle, size, &properties, 0) != CUDA_SUCCESS)
        return;
    check(cuMemAddressReserve(&at, size, 0, 0, 0), "cuMemAddressReserve");
    check(cuMemMap(at, size, 0, handle, 0), "cuMemMap");
    check(cuMemRelease(handle), "cuMemRelease");
    check(cuMemUnmap(at, size), "cuMemUnmap");
    check(cuMemAddressFree(at, size), "cuMemAddressFree");
}

/* A graph that allocates and frees, launched while others are. */
static void churn_graph(size_t size)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}};
    CUgraph graph;
    CUgraphExec executable;
    CUgraphNode allocated, freed;
    params.bytesize = size;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&allocated, graph, NULL, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&freed, graph, &allocated, 1, params.dptr));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; i++) {
        CUresult result = cuGraphLaunch(executable, CU_STREAM_PER_THREAD);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            check(result, "cuGraphLaunch");
    }
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
}

static void *churn_one(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number + (unsigned)getpid();
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (long round = 0; rounds == 0 || round < rounds; round++) {
        size_t size = unit * (1 + (unsigned)rand_r(&seed) % 32), pitch;
        CUdeviceptr pointer;
        CUarray array;
        const CUDA_ARRAY_DESCRIPTOR plane = {1024, 1024, CU_AD_FORMAT_FLOAT, 1};
        switch ((unsigned)rand_r(&seed) % FAMILIES) {
        case 0:
            if (cuMemAlloc_v2(&pointer, size) == CUDA_SUCCESS)
                check(cuMemFree_v2(pointer), "cuMemFree_v2");
            break;
        case 1:
            if (cuMemAllocAsync(&pointer, size, CU_STREAM_PER_THREAD) == CUDA_SUCCESS)
                check(cuMemFreeAsync(pointer, CU_STREAM_PER_THREAD), "cuMemFreeAsync");
            break;
        case 2:
            churn_virtual(size);
            break;
        case 4:
            churn_graph(size);
            break;
        case 3:
            if (cuMemAllocPitch_v2(&pointer, &pitch, 1000, 1000, 4) == CUDA_SUCCESS)
                check(cuMemFree_v2(pointer), "cuMemFree_v2");
            break;
        default:
            if (cuArrayCreate_v2(&array, &plane) == CUDA_SUCCESS)
                check(cuArrayDestroy(array), "cuArrayDestroy");
        }
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count == 4 && strcmp(words[1], "storm") == 0) {
        rounds = strtol(words[3], NULL, 10);
        return storm(atoi(words[2]));
    }
    if (count == 4 && strcmp(words[1], "fit") == 0) {
        rounds = strtol(words[3], NULL, 10);
        return fit(strtoull(words[2], NULL, 10));
    }
    if (count == 5 && strcmp(words[1], "race") == 0) {
        race_of.most = strtoull(words[4], NULL, 10);
        return race(words[3], strtoull(words[2], NULL, 10) * 1000000);
    }
    if (count == 3 && strcmp(words[1], "fork") == 0)
        return forked(strtoull(words[2], NULL, 10));
    if (count >= 2 && strcmp(words[1], "churn") == 0) {
        rounds = count == 3 ? strtol(words[2], NULL, 10) : 0;
        begin();
        in_threads(4, churn_one);
        puts("churned");
        return 0;
    }
    return 2;
}
