/*
 * The accounting of device memory, for the rest of the interposer.
 * In: cuInit, and functions that are about to report free memory. Out: nothing. Idempotent and cheap.
 */
#ifndef VCUDA_MEMORY_MEMORY_H
#define VCUDA_MEMORY_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi/limits.h"
#include "cuda.h"

void memory_start(void);

/*
 * Around a call that may make a context on a device, the primary one where it does not exist: room for what the driver takes for it is reserved before,
 * by what the container's contexts took so far. False: there is none, CUDA_ERROR_OUT_OF_MEMORY. A container's first context is always made.
 */
struct memory_context_room {
    unsigned index;
    uint64_t bytes;     /* 0: nothing is reserved */
};
bool memory_context_begin(struct memory_context_room *room, int device, bool primary);
void memory_context_end(const struct memory_context_room *room, bool made);

/* Whether memory may be had there: not on a GPU that the limits do not name, nor where none is given. */
bool memory_may_be_at(const CUmemLocation *location);

/* Somebody retained the primary context of a device. */
void memory_primary(int device, CUcontext primary);

/* It is about to be reset: which one it is has to be known. */
void memory_find_primary(CUdevice device);

/* Something is about to be counted in the current context, which may have come past the functions that make contexts. */
void memory_meet_slowly(unsigned index);
extern _Atomic bool memory_met[LIMITS_MAX_DEVICES];
static inline void memory_meet(unsigned index)
{
    if (!atomic_load_explicit(&memory_met[index], memory_order_relaxed))
        memory_meet_slowly(index);
}

/* Something was launched for the first time: the driver may have loaded it, or grown what threads use, and that counts before anything is given out. */
void memory_launched_first(void);

/* A green context is about to be destroyed. */
void memory_green_ends(CUgreenCtx green);
/* The driver is about to be asked for a context. */
void memory_expect_context(CUdevice device);

/* What modules took, pools gave back and others let go since it was last measured counts from here on; `index`: the device, or VCUDA_NOT_LIMITED. */
void memory_settle(int index);

#endif
