/*
 * What a launch costs: GPU time of one launch, learned, by what is launched and with how many threads.
 *
 * In: a function or a graph with its grid and block, and measured times. Out: an estimate, 0 while nothing was measured. Not here: measuring.
 *
 * The table has a fixed size, and old entries make room: what is forgotten is measured again. An entry is known by a 64-bit hash, so two launches
 * could share one by an accident that nobody will see. Reading and learning are atomic word by word; a lost update costs a sample.
 * Invariant: an estimate is 0 or at least 1, and one sample, wrong or right, moves it by no more than a factor of four.
 */
#ifndef VCUDA_COMPUTE_ESTIMATES_H
#define VCUDA_COMPUTE_ESTIMATES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { ESTIMATES_CAPACITY = 8192 };

struct launch_key {
    const void *handle;                 /* CUfunction (or CUkernel) or CUgraphExec: never looked into */
    uint32_t grid[3], block[3];         /* 0 for a graph */
};

struct estimate {
    _Atomic uint64_t identity;          /* 0: free */
    _Atomic uint64_t ns;
};

struct estimates {
    struct estimate entries[ESTIMATES_CAPACITY];
};

/* The entry of a key, made where there is none. Never NULL. */
struct estimate *estimates_find(struct estimates *estimates, const struct launch_key *key);

/* What a handle means may have changed, or it is gone: measure again. For graphs, whose key is the handle alone. */
void estimates_forget(struct estimates *estimates, const struct launch_key *key);

static inline uint64_t estimate_ns(const struct estimate *estimate)
{
    return atomic_load_explicit(&estimate->ns, memory_order_relaxed);
}

/* One launch took `ns`. */
void estimate_learn(struct estimate *estimate, uint64_t ns);

/* A batch with this launch in it took `scale` times what its estimates add up to. */
void estimate_scale(struct estimate *estimate, double scale);

static inline bool launch_key_equal(const struct launch_key *a, const struct launch_key *b)
{
    return a->handle == b->handle && a->grid[0] == b->grid[0] && a->grid[1] == b->grid[1] && a->grid[2] == b->grid[2] &&
           a->block[0] == b->block[0] && a->block[1] == b->block[1] && a->block[2] == b->block[2];
}

#endif
