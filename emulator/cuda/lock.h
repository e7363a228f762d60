/*
 * The one lock of this process's driver state: contexts, streams, events, captures, graphs. Held for arithmetic alone, never while sleeping, while
 * application code runs or while memory/ is called. The order is: memory_lock, then this one, then a GPU's lock (gpu_lock.h).
 */
#ifndef VCUDA_EMULATOR_CUDA_LOCK_H
#define VCUDA_EMULATOR_CUDA_LOCK_H

#include <stdint.h>

void driver_lock(void);
void driver_unlock(void);
/* Wakes who waits for something to change, and waits for it: until then at latest (CLOCK_MONOTONIC ns). The lock is held again on return. */
void driver_changed(void);
void driver_wait(uint64_t until_ns);

#endif
