/*
 * Many allocations out of a few pieces of physical memory.
 *
 * In: sizes. Out: addresses in chunks; a chunk is made in steps when nothing fits. What uses it: the slabs that small allocations
 * of a device share, memory pools, graph memory. They differ in step and in when an empty chunk goes back: at once, at a threshold,
 * when trimmed. Not here: records of allocations. Invariant: a chunk whose `used` is 0 is free as a whole, and `reserved` is the
 * sum of all chunks.
 */
#ifndef VCUDA_EMULATOR_ARENA_H
#define VCUDA_EMULATOR_ARENA_H

#include "physical.h"
#include "ranges.h"

enum { ARENA_ALIGNMENT = 512 };     /* of addresses, and what sizes are rounded up to */

struct chunk {
    struct span span;
    struct physical *physical;
    uint64_t used;
};

struct arena {
    struct physical_request request;      /* of each chunk; `size` is the step */
    uint64_t most;                  /* 0: no limit on `reserved` */
    struct ranges free;
    struct spans chunks;
    uint64_t reserved, reserved_high;
};

/* NULL: out of memory. The address in *at. */
struct chunk *arena_take(struct arena *arena, uint64_t size, uint64_t *at);
/* The same without growing. */
struct chunk *arena_take_free(struct arena *arena, uint64_t size, uint64_t *at);
struct chunk *arena_chunk(const struct arena *arena, uint64_t address);
/* The chunk that is empty after it; NULL: something is still in it. */
struct chunk *arena_give(struct arena *arena, uint64_t address, uint64_t size);
void arena_drop(struct arena *arena, struct chunk *empty);
/* Another chunk, in whole steps; where the GPU has not that much left, of what is needed and no more. False: not even that. */
bool arena_grow(struct arena *arena, uint64_t size);
/* Gives empty chunks back while at least `keep` bytes stay reserved. */
void arena_trim(struct arena *arena, uint64_t keep);
/* Gives empty chunks back while more than `threshold` bytes are reserved. */
void arena_shrink(struct arena *arena, uint64_t threshold);

#endif
