/*
 * Stream-ordered allocation: the steps between a hook and the driver.
 *
 * In: a pool, a size, the driver's answer. Out: the answer for the application. Not here: which stream (ordered_hooks.c), what is charged for a
 * pool (pools.h). Invariants: nothing is charged, refused or asked in a capture; no stream is synchronised; what made the container exceed its
 * limit, because the pool grew by more than was asked for, is freed again and refused.
 */
#ifndef VCUDA_MEMORY_ORDERED_H
#define VCUDA_MEMORY_ORDERED_H

#include "account.h"
#include "interposer/cuda/hooks.h"
#include "pools.h"

struct ordered {
    enum verdict verdict;
    unsigned index;
    uint64_t bytes;
    struct pool *pool;
    struct account_span span;
};

/* From the current pool of the stream's device; from a given one. */
void ordered_find_current(struct ordered *ordered, CUstream stream);
void ordered_find(struct ordered *ordered, CUmemoryPool pool);

/* False: to be refused. */
bool ordered_begin(struct ordered *ordered, uint64_t bytes);

/* True: keep it. False: free it in the stream, then ordered_undone. */
bool ordered_end(struct ordered *ordered, CUdeviceptr pointer);
void ordered_fail(struct ordered *ordered);
void ordered_undone(struct ordered *ordered);

/* Pools of a device, as soon as the application meets them. */
void ordered_meet(CUmemoryPool pool, CUmemLocation location);

#endif
