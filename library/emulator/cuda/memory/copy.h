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

/* Which sides may be the application's own, unregistered memory. */
enum { SOURCE_PAGEABLE = 1, TARGET_PAGEABLE = 2 };

struct transfer {
    uint64_t target, source, bytes;
    unsigned pageable;
};

/* CUDA_ERROR_INVALID_VALUE: a side is not all there. */
CUresult transfer_check(const struct transfer *transfer, enum copy_route *route);
void transfer_perform(const struct transfer *transfer);

/* `size` is 1, 2 or 4 bytes of `value`, `count` times. */
CUresult memory_fill_check(uint64_t target, unsigned size, uint64_t count);
void memory_fill(uint64_t target, uint32_t value, unsigned size, uint64_t count);

#endif
