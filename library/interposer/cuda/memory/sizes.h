/*
 * How much device memory a request takes: pure arithmetic.
 *
 * In: what the application asks for. Out: the bytes to charge, UINT64_MAX where the sum does not fit 64 bits. Not here: driver calls.
 * Invariant: never less than the content needs. What the driver adds beyond, as the slab that small allocations share, is found by the
 * reconciliation of overhead.
 */
#ifndef VCUDA_MEMORY_SIZES_H
#define VCUDA_MEMORY_SIZES_H

#include <stdint.h>

struct array_shape {
    uint64_t width, height, depth;  /* in elements, as in the descriptor: 0 for a missing dimension */
    unsigned format, channels, flags;
    unsigned levels;                /* of a mipmap; 1 for an array */
};

/* From 1 MiB on in whole pages of 2 MiB, as the driver takes it from the GPU; below in parts of 512 bytes. */
uint64_t sizes_charge(uint64_t bytes);

/* Of a pool, which packs what it gives out. */
uint64_t sizes_pooled(uint64_t bytes);

/* The most that a pitched allocation can need, before the driver has said its pitch. */
uint64_t sizes_pitched(uint64_t width_bytes, uint64_t height);

uint64_t sizes_rows(uint64_t pitch, uint64_t height);

uint64_t sizes_array(const struct array_shape *shape);

#endif
