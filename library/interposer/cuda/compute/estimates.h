/*
 * What a launch costs: GPU time of one launch, learned, by what is launched and with how many threads.
 *
 * In: a function or a graph with its grid and block, and measured times. Out: an estimate, 0 while nothing was measured. Not here: measuring.
 *
 * The table has a fixed size, and where it is full entries make room for others: what is forgotten is measured again. An entry is known by a 64-bit
 * hash, so two launches could share one by an accident that nobody will see. Reading and learning are atomic word by word; a lost update costs a
 * sample.
 * Invariant: an estimate is 0 or at least 1, and one sample, wrong or right, moves it by no more than a factor of four, unless it was a guess.
 */
#ifndef VCUDA_COMPUTE_ESTIMATES_H
#define VCUDA_COMPUTE_ESTIMATES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { ESTIMATES_CAPACITY = 8192 };

/* In words, so that two are compared at once. */
struct launch_key {
    uint64_t handle;                    /* CUfunction (or CUkernel) or CUgraphExec: never looked into */
    uint64_t dimensions[3];             /* grid and block, two numbers in each; 0 for a graph */
};

static inline struct launch_key launch_key(const void *handle, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz)
{
    return (struct launch_key){(uint64_t)(uintptr_t)handle, {(uint64_t)gy << 32 | gx, (uint64_t)bx << 32 | gz, (uint64_t)bz << 32 | by}};
}

static inline bool launch_key_equal(const struct launch_key *a, const struct launch_key *b)
{
    return ((a->handle ^ b->handle) | (a->dimensions[0] ^ b->dimensions[0]) | (a->dimensions[1] ^ b->dimensions[1]) |
            (a->dimensions[2] ^ b->dimensions[2])) == 0;
}

/* Quick, for small caches. */
static inline uint64_t launch_key_hash(const struct launch_key *key)
{
    uint64_t hash = (key->handle >> 4 ^ key->dimensions[0] ^ key->dimensions[1] << 3 ^ key->dimensions[2] << 7) * UINT64_C(0x9E3779B97F4A7C15);
    return hash >> 40;
}

struct estimate {
    _Atomic uint64_t identity;          /* 0: free */
    _Atomic uint64_t ns;
    _Atomic bool guessed;               /* never measured */
};

struct estimates {
    struct estimate entries[ESTIMATES_CAPACITY];
};

/* The entry of a key, made where there is none. Never NULL. */
struct estimate *estimates_find(struct estimates *estimates, const struct launch_key *key);

/* The entry, or NULL. */
struct estimate *estimates_look(struct estimates *estimates, const struct launch_key *key);

/* What a handle means may have changed, or it is gone: measure again. For graphs, whose key is the handle alone. */
void estimates_forget(struct estimates *estimates, const struct launch_key *key);

static inline uint64_t estimate_ns(const struct estimate *estimate)
{
    return atomic_load_explicit(&estimate->ns, memory_order_relaxed);
}

/* Nothing was measured, and it may take so long (guesses.h). */
void estimate_guess(struct estimate *estimate, uint64_t ns);

/* One launch took `ns`. */
void estimate_learn(struct estimate *estimate, uint64_t ns);

/* A batch with this launch in it took `scale` times what its estimates add up to. */
void estimate_scale(struct estimate *estimate, double scale);

#endif
