/*
 * Memory pools, and what the driver keeps for graphs: what is charged for each, and how that follows what the pool really holds.
 *
 * In: each stream-ordered allocation before and after the driver's answer, each free, and now and then the bytes that the driver says a pool has
 * reserved. Out: corrections of the ledger. Not here: driver calls (a reader is passed in), what is done when memory is short.
 * Invariants: an allocation is charged as asked until the pool's next reading, then the pool is charged what it has reserved, allocations under
 * way on top; freeing gives nothing back before the pool does; a destroyed pool is charged for what is still allocated from it. No lock is
 * held while the driver is called: only who destroys a pool waits for those who read or trim it.
 */
#ifndef VCUDA_MEMORY_POOLS_H
#define VCUDA_MEMORY_POOLS_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* Bytes that the driver's pool of this handle has reserved; false: it cannot be said now. */
typedef bool pools_reader(const void *handle, uint64_t *reserved);

/* The record of a pool on a limited device, made where there is none. NULL: no host memory. */
struct pool *pools_of(const void *handle, unsigned device);

/* The record, or NULL where this pool was never seen. */
struct pool *pools_known(const void *handle, unsigned *device);

/* The bytes are taken in the ledger already. After one `begin` comes one `succeed` or `fail`; true: the pool should be read now. */
void pools_begin(struct pool *pool, uint64_t bytes);
bool pools_succeed(struct pool *pool, uint64_t bytes);
void pools_fail(struct pool *pool, uint64_t bytes);

void pools_freed(struct pool *pool, uint64_t bytes);

/* Around the driver's destruction of a pool, so that nobody reads it meanwhile. `end` exactly after a `begin` that gave a record. */
struct pool *pools_destroy_begin(const void *handle);
void pools_destroy_end(struct pool *pool, const void *handle, bool destroyed);

/* It is read even where nothing is charged for it: memory may appear in it by itself. */
void pools_watch(struct pool *pool);

/* Until it is let go the pool is not trimmed from here, and its charge does not fall: somebody relies on what it holds. */
void pools_hold(struct pool *pool);
void pools_let_go(struct pool *pool);

uint64_t pools_charged(struct pool *pool);

/* Taken in the ledger for what the pool will hold when it is read next. Of a pool that is held. */
void pools_raise(struct pool *pool, uint64_t bytes);

/* Reads one pool, or every pool of a device (-1: of all), and corrects the ledger. */
void pools_read(struct pool *pool, pools_reader *reader);
void pools_read_device(int device, pools_reader *reader);

/* Calls for every pool of a device that has memory and is not held. */
typedef void pools_visitor(const void *handle);
void pools_visit(unsigned device, pools_visitor *visit);

/* False until the first pool was seen. */
bool pools_any(void);

/* In a child after fork. */
void pools_forget(void);

#endif
