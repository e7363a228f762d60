/*
 * The accounting of device memory, for the rest of the interposer.
 * In: cuInit, and whoever is about to say what is free. Out: nothing. Idempotent and cheap.
 */
#ifndef VCUDA_MEMORY_MEMORY_H
#define VCUDA_MEMORY_MEMORY_H

#include "cuda.h"

void memory_start(void);

/* The driver is about to be asked for a context. */
void memory_expect_context(CUdevice device);

/* What modules took since it was last measured counts from here on. */
void memory_settle(void);

#endif
