/*
 * For programs of tests whose threads and processes race for memory: everybody takes what he can get and frees it, again and again.
 * In: how; a count that all processes share. Out: "never more than there is", or what was wrong and exit status 1.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "threads.h"

enum { MOST_BLOCKS = 16 };

static struct {
    CUcontext context;
    uint64_t deadline_ns, most;     /* bytes that all together never exceed */
    int blocks;                     /* at once */
    unsigned units;                 /* of 2 MiB: the largest block */
    bool pauses;                    /* now and then, so that others look */
    _Atomic uint64_t *held;
} race_of;

/* Counted after it is taken and uncounted before it is given back, so that the count is never too high. */
static inline int take_all(CUdeviceptr *blocks, uint64_t size)
{
    int count = 0;
    while (count < race_of.blocks && cuMemAlloc_v2(&blocks[count], size) == CUDA_SUCCESS) {
        count++;
        if (atomic_fetch_add(race_of.held, size) + size > race_of.most) {
            puts("more than there is");
            exit(1);
        }
    }
    return count;
}

static inline void *race_one(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number + (unsigned)getpid() * 31;
    check(cuCtxSetCurrent(race_of.context), "cuCtxSetCurrent");
    while (now_ns() < race_of.deadline_ns) {
        CUdeviceptr blocks[MOST_BLOCKS];
        uint64_t size = (UINT64_C(2) << 20) * (1 + (unsigned)rand_r(&seed) % race_of.units);
        int count = take_all(blocks, size);
        if (race_of.pauses && (unsigned)rand_r(&seed) % 8 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        atomic_fetch_sub(race_of.held, size * (uint64_t)count);
        while (count > 0)
            check(cuMemFree_v2(blocks[--count]), "cuMemFree_v2");
    }
    return NULL;
}

static inline void race_in(int threads)
{
    in_threads(threads, race_one);
    puts("never more than there is");
}
