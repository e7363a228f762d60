/*
 * What a launch costs: GPU time of one launch, learned, by what is launched and with how many threads.
 *
 * In: a function or a graph with its grid and block, and measured times. Out: an estimate, 0 while nothing was measured. Not here: measuring.
 *
 * The table has a fixed size, and where it is full entries make room for others: what is forgotten is measured again. An entry is known by a 64-bit
 * hash, so two launches could share one by an accident that nobody will see. Reading and learning are atomic word by word; a lost update costs a
 * sample.
 * Launches that can wait for another GPU are known by their key, and only they keep what waits.h needs.
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
    uint64_t dimensions[3];             /* grid and block, two numbers in each; 0 for a graph; and LAUNCH_TOGETHER in the last */
};

/* All blocks are on the GPU at once, or memory of other GPUs is used: cooperative launches, and those of the remote memory domain. */
#define LAUNCH_TOGETHER (UINT64_C(1) << 63)

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
    _Atomic uint64_t identity;          /* 0: free; odd: it can wait */
    _Atomic uint64_t ns;                /* and ESTIMATE_ALONE */
    _Atomic uint64_t least_ns;          /* of what can wait, measured alone; 0: never */
    _Atomic uint32_t calm;              /* measured alone without having waited long, one after the other */
    _Atomic bool waits;                 /* it is known to wait */
    _Atomic bool guessed;               /* never measured */
};

/* It is measured alone. In the same word, so that it is beyond every reservation and goes the long way (stream_queue.h). */
#define ESTIMATE_ALONE (UINT64_C(1) << 63)

struct estimates {
    _Atomic uint32_t few_blocks;        /* a grid of no more blocks can wait */
    struct estimate entries[ESTIMATES_CAPACITY];
};

/* The entry of a key, made where there is none. Never NULL. */
struct estimate *estimates_find(struct estimates *estimates, const struct launch_key *key);

/* The entry, or NULL. */
struct estimate *estimates_look(struct estimates *estimates, const struct launch_key *key);

/* What a handle means may have changed, or it is gone: measure again. For graphs, whose key is the handle alone. */
void estimates_forget(struct estimates *estimates, const struct launch_key *key);

/* With ESTIMATE_ALONE. */
static inline uint64_t estimate_word(const struct estimate *estimate)
{
    return atomic_load_explicit(&estimate->ns, memory_order_relaxed);
}

static inline uint64_t estimate_ns(const struct estimate *estimate)
{
    return estimate_word(estimate) & ~ESTIMATE_ALONE;
}

static inline bool estimate_can_wait(const struct estimate *estimate)
{
    return (atomic_load_explicit(&estimate->identity, memory_order_relaxed) & 1) != 0;
}

void estimate_set_alone(struct estimate *estimate, bool alone);

/* Nothing was measured, and it may take so long (guesses.h). */
void estimate_guess(struct estimate *estimate, uint64_t ns);

/* One launch took `ns`. */
void estimate_learn(struct estimate *estimate, uint64_t ns);

/* A batch with this launch in it took `scale` times what its estimates add up to. */
void estimate_scale(struct estimate *estimate, double scale);

#endif
