/*
 * What was charged for each allocation of this process: a hash from an address or handle to its charge, for any number of threads.
 *
 * In: keys that the driver gave out (never 0), their charges. Out: the charge again, once. Not here: the ledger, driver calls.
 * Invariants: a charge that was put is taken exactly once, by one thread, or handed out by the put that replaces it; keys that were never put
 * are not there. Storage comes from mmap, not from the application's allocator, which may itself be built on CUDA.
 */
#ifndef VCUDA_MEMORY_CHARGES_H
#define VCUDA_MEMORY_CHARGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "short_lock.h"

enum { CHARGES_SHARDS = 64 };

enum charge_kind {
    CHARGE_LINEAR = 1,      /* gone with its context */
    CHARGE_MANAGED,         /* the same; not among what NVML counts for the process */
    CHARGE_POOLED,          /* charged with its pool */
    CHARGE_GRAPH,           /* left by a graph's launch, charged with what the driver keeps for graphs */
};

struct charge {
    uint64_t bytes;
    const void *owner;      /* the context; the record of the pool */
    uint32_t device;        /* position in the limits file */
    enum charge_kind kind;
};

struct charges_entry {
    uint64_t key;           /* 0: empty */
    struct charge charge;
};

struct charges_shard {
    _Alignas(64) struct short_lock lock;
    struct charges_entry *entries;
    uint64_t capacity, count;   /* capacity: a power of two, or 0 */
};

struct charges {
    struct charges_shard shards[CHARGES_SHARDS];
    _Atomic bool ever;          /* something was put: a count of what is there now would be one more word that all threads write to */
};

/* False where there is no host memory for it: nothing changed. `replaced->bytes` says what the key stood for before, 0 for nothing. */
bool charges_put(struct charges *charges, uint64_t key, struct charge charge, struct charge *replaced);

bool charges_has(struct charges *charges, uint64_t key);
bool charges_take(struct charges *charges, uint64_t key, struct charge *taken);

/* Takes all of one owner and hands each out. The visitor is called with a lock held and may not come back here. */
typedef void charges_visitor(const struct charge *charge, void *context);
void charges_take_owned(struct charges *charges, const void *owner, charges_visitor *visit, void *context);

/* Forgets everything, in a child after fork: the holder of a lock does not exist there. */
void charges_forget(struct charges *charges);

/* False: nothing was ever put. */
static inline bool charges_ever(const struct charges *charges)
{
    return atomic_load_explicit(&charges->ever, memory_order_relaxed);
}

#endif
