/*
 * Moving bytes, now: what copies and fills do to memory, apart from when they would be done on a GPU.
 *
 * In: addresses on either side. Out: which way they go (for the cost), or that one of them lies nowhere. Not here: streams, captures.
 * Invariant: nothing moves unless all of it can.
 */
#ifndef VCUDA_EMULATOR_COPY_H
#define VCUDA_EMULATOR_COPY_H

#include <cuda.h>
#include <stdbool.h>

#include "../stream.h"

/* Which sides may be the application's own, unregistered memory; and whether the copy is of a graph, whose memory comes with its launch. */
enum { SOURCE_PAGEABLE = 1, TARGET_PAGEABLE = 2, PLANNED = 4 };

struct transfer {
    uint64_t target, source, bytes;
    unsigned flags;
};

/* CUDA_ERROR_INVALID_VALUE: a side is not all there. */
CUresult transfer_check(const struct transfer *transfer, enum copy_route *route);
void transfer_perform(const struct transfer *transfer);

/* `size` is 1, 2 or 4 bytes of `value`, `count` times. */
CUresult memory_fill_check(uint64_t target, unsigned size, uint64_t count, bool planned);
void memory_fill(uint64_t target, uint32_t value, unsigned size, uint64_t count);

#endif
