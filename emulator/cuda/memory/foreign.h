/*
 * Memory of other processes in this one: opened IPC handles, and pointers out of shared pools.
 *
 * In: the name of a shared file and where in it. Out: an allocation at an address of this process, for the same bytes. Not charged
 * here: its maker pays. Under memory_lock(). Invariant: one file is mapped once per process, however many allocations of it are
 * opened.
 */
#ifndef VCUDA_EMULATOR_FOREIGN_H
#define VCUDA_EMULATOR_FOREIGN_H

#include "allocation.h"
#include "sharing.h"

struct foreign_place {
    struct shared_name name;
    uint64_t offset, size;
};

/* NULL: it is gone, or there is no memory. Opening the same place again gives the same allocation again. */
struct allocation *foreign_open(enum allocation_kind kind, const struct foreign_place *place);
/* Ends with as many releases as it was opened. */
void foreign_release(struct allocation *allocation);

/* Where a GPU's memory of this process lies, for others; false: it cannot be shared now. */
bool foreign_place_of(const struct allocation *allocation, struct foreign_place *out);

#endif
