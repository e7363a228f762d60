/*
 * Linear device memory: plain, pitched, managed.
 *
 * In: sizes in a context. Out: records of allocations. Small ones (up to LINEAR_SMALL) share slabs of SPACE_UNIT, as the real
 * driver's do, so that the first byte costs two mebibytes and the next nothing; larger ones are rounded up to SPACE_UNIT. Not here:
 * checks of arguments. Under memory_lock(). Invariant: a slab goes back to the GPU with its last allocation.
 */
#ifndef VCUDA_EMULATOR_LINEAR_H
#define VCUDA_EMULATOR_LINEAR_H

#include "allocation.h"

#define LINEAR_SMALL (UINT64_C(1) << 20)
enum { PITCH_ALIGNMENT = 512 };

/* NULL: out of memory. */
struct allocation *linear_make(enum allocation_kind kind, int device, enum space_zone zone, uint64_t size);
void linear_release(struct allocation *allocation);

#endif
