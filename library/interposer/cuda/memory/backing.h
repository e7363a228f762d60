/*
 * Physical memory that cuMemCreate made, and who still holds it: handles and mappings.
 *
 * In: what the application created, imported, retained, released, mapped and unmapped, each after the driver agreed. Out: how many bytes of
 * which device are free now. Not here: driver calls, the ledger, locks (one caller at a time).
 * Invariants: memory counts until its last handle is released and its last mapping is gone, in whatever order; imported memory never
 * counts; a handle's number may come back for other memory while the old memory is still mapped.
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
void backing_released(uint64_t handle, backing_freed *freed);
bool backing_mapped(uint64_t address, uint64_t size, uint64_t handle);
void backing_unmapped(uint64_t address, uint64_t size, backing_freed *freed);

/* In a child after fork. */
void backing_forget(void);

#endif
