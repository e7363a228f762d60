/*
 * Descriptors of exported memory: who made it, and whether one is still open in any process.
 *
 * In: descriptors that the driver gave out, or that were handed to this process. Out: what travels with them. Not here: what is charged (backing.h).
 * How: an owner (F_SETOWN) and a lock (F_OFD_SETLK) belong to the open file and not to a descriptor. So they go with it through dup, fork and sockets;
 * the owner is told as 0 once it is dead, and the lock, on a byte whose number stands for the memory, ends with the last descriptor. Of a fabric handle only the driver knows: it imports it as long as anybody has the memory.
 * Invariant: where that cannot be said for certain, a descriptor is open.
 */
#ifndef VCUDA_MEMORY_EXPORTS_H
#define VCUDA_MEMORY_EXPORTS_H

#include <stdbool.h>
#include <stdint.h>

enum { EXPORTS_FABRIC = 64 };

/* Of one piece of memory, however often it is exported. */
struct export;

/* Marks a descriptor as one of memory that `owner` made. `known`: what was given out for the same memory before, or NULL. NULL: no host memory. */
struct export *exports_mark(struct export *known, int descriptor, uint32_t owner);

/* It can be reached by other means than descriptors, for ever. NULL: no host memory. */
struct export *exports_mark_endless(struct export *known);

/* It can be reached by this fabric handle, until the driver says that there is nothing behind it. NULL: no host memory. */
struct export *exports_mark_fabric(struct export *known, const void *handle);

/* It is asked about again, at most ten times a second: true, with the handle. exports_fabric_ended: there is nothing behind it. */
bool exports_ask_fabric(struct export *export, unsigned char handle[static EXPORTS_FABRIC], uint64_t now_ns);
void exports_fabric_ended(struct export *export);

bool exports_is_open(const struct export *export);
void exports_drop(struct export *export);

/* The process that made it, in our pid namespace; 0: none that lives and is seen here. */
uint32_t exports_owner(int descriptor);

/* In a child after fork. */
void exports_forget(void);

#endif
