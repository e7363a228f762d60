/*
 * What can be done for a device that has no room: the driver holds memory that nobody uses, in pools and for graphs.
 *
 * In: a device's position in the limits. Out: the ledger follows what the driver really holds. Not here: when it is done.
 * Invariants: never synchronises a stream; disturbs no capture of any thread.
 */
#ifndef VCUDA_MEMORY_RECLAIM_H
#define VCUDA_MEMORY_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

struct pool;

/* Charges every pool and the graphs' memory as the driver says now. */
void reclaim_read(unsigned index);

/* Lets the driver give back what it keeps unused, then reads again; false: there was nothing to trim. */
bool reclaim_trim(unsigned index);

/* What the driver says that a pool has reserved: a pools_reader. */
bool reclaim_read_pool(const void *handle, uint64_t *reserved);

/* Graph memory may appear on any device from now on. */
void reclaim_note_graphs(void);

/* The pool that stands for what the driver keeps for graphs on a device. NULL: no host memory. */
struct pool *reclaim_graphs(unsigned index);

/* Calls in between disturb no other thread's capture. */
CUstreamCaptureMode reclaim_begin(void);
void reclaim_end(CUstreamCaptureMode mode);

/* Follows pools and graph memory from the helper thread; cheap to call again. */
void reclaim_follow(void);

/* In a child after fork. */
void reclaim_forget(void);

#endif
