/*
 * The accounting of device memory, for the rest of the interposer.
 * In: cuInit, and functions that are about to report free memory. Out: nothing. Idempotent and cheap.
 */
#ifndef VCUDA_MEMORY_MEMORY_H
#define VCUDA_MEMORY_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

void memory_start(void);

/*
 * Around a call that may make this process's first context on a device: room for what the driver takes for it is reserved before, by what the
 * container's contexts took so far. False: there is none, CUDA_ERROR_OUT_OF_MEMORY. A container's first context is always made.
 */
struct memory_context_room {
    unsigned index;
    uint64_t bytes;     /* 0: nothing is reserved */
};
bool memory_context_begin(struct memory_context_room *room, int device);
void memory_context_end(const struct memory_context_room *room, bool made);

/* Somebody retained the primary context of a device. */
void memory_primary(int device, CUcontext primary);

/* A green context is about to be destroyed. */
void memory_green_ends(CUgreenCtx green);
/* The driver is about to be asked for a context. */
void memory_expect_context(CUdevice device);

/* What modules took since it was last measured counts from here on. */
void memory_settle(void);

#endif
