/*
 * Physical memory that cuMemCreate made, and who still holds it: handles and mappings.
 *
 * In: what the application created, imported, retained, mapped and unmapped, each after the driver agreed, and what it releases, before and after.
 * Out: how many bytes of which device are free now. Not here: driver calls, the ledger, locks (one caller at a time).
 * Invariants: memory counts until its last handle is released and its last mapping is gone, in whatever order; imported memory never
 * counts; a handle's number may come back for other memory while the old memory is still mapped, or as soon as the driver has released it.
 */
#ifndef VCUDA_MEMORY_BACKING_H
#define VCUDA_MEMORY_BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes per device that nobody holds any more. */
typedef void backing_freed(unsigned device, uint64_t bytes);

/* False: no host memory to remember it. An address range of size 0 is never mapped. */
bool backing_created(uint64_t handle, unsigned device, uint64_t bytes);
bool backing_imported(uint64_t handle);
/* The driver gave out `handle` for what is mapped at `address`: a number that is known or a new one. */
bool backing_retained(uint64_t handle, uint64_t address);

/* What a handle stands for, kept through a call of the driver that names it. NULL: not ours. `end` exactly after a `begin` that was not NULL. */
struct memory;
struct memory *backing_release_begin(uint64_t handle);
void backing_release_end(struct memory *memory, uint64_t handle, bool released, backing_freed *freed);
struct memory *backing_map_begin(uint64_t handle);
/* False: it was mapped, there is no host memory to remember it, and it has to be unmapped. */
bool backing_map_end(struct memory *memory, uint64_t address, uint64_t size, bool mapped, backing_freed *freed);
void backing_unmapped(uint64_t address, uint64_t size, backing_freed *freed);

/* Parts of a sparse array: where, and how far. `kind` tells mip tails and levels apart. */
struct backing_part {
    const void *array;
    unsigned kind, level, layer;
    uint64_t at[3], extent[3];
};
/* After the driver agreed, and instead of backing_map_end: memory stays behind the part. `owner`: with whom the array ends. */
bool backing_part_mapped(struct memory *memory, const struct backing_part *part, const void *owner);
/* Everything that lies within the part. */
void backing_part_unmapped(const struct backing_part *part, backing_freed *freed);
/* The array was destroyed; the owner is gone. */
void backing_array_gone(const void *array, backing_freed *freed);
void backing_owner_gone(const void *owner, backing_freed *freed);

/* In a child after fork. */
void backing_forget(void);

#endif
