/*
 * What can be done for a device that has no room: the driver holds memory that nobody uses, in pools and for graphs.
 *
 * In: a device's position in the limits. Out: the ledger follows what the driver really holds. Not here: when it is done.
 * Invariants: never synchronises a stream; disturbs no capture of any thread.
 */
#ifndef VCUDA_MEMORY_RELIEF_H
#define VCUDA_MEMORY_RELIEF_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

/* Around calls of the driver by a thread of ours: only so are they no danger to what any other thread captures. */
CUstreamCaptureMode relief_begin_relaxed(void);
void relief_end_relaxed(CUstreamCaptureMode mode);

/* Charges every pool and the graphs' memory as the driver says now. */
void relief_read(unsigned index);

/* Lets the driver give back what it keeps unused, then reads again; false: there was nothing to trim. */
bool relief_trim(unsigned index);

/* What the driver says that a pool has reserved: a pools_reader. */
bool relief_read_pool(const void *handle, uint64_t *reserved);

/* Graph memory may appear on a device from now on. */
void relief_note_graphs(void);

/* Follows pools and graph memory from the helper thread; cheap to call again. */
void relief_follow(void);

/* In a child after fork. */
void relief_forget(void);

#endif
