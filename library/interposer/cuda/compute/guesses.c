/* See guesses.h. */
#include "guesses.h"

#include <stddef.h>

/* Sizes of grids are numbered, four to each power of two from 4 on, which is the first to have numbers from 8 on; fewer blocks are a size each. */
enum { SIZES = 256, STEPS = 4 };

struct point {
    double blocks, ns;
};

/* 0: a graph. A grid that is too large for the driver, too, has some size. */
static uint64_t blocks_of(const struct launch_key *key)
{
    uint64_t blocks;
    if (__builtin_mul_overflow((uint64_t)(uint32_t)key->dimensions[0] * (key->dimensions[0] >> 32), (uint64_t)(uint32_t)key->dimensions[1], &blocks))
        return UINT64_MAX;
    return blocks;
}

static unsigned size_of(uint64_t blocks)
{
    if (blocks < STEPS)
        return (unsigned)blocks;
    unsigned power = 63 - (unsigned)__builtin_clzll(blocks);
    return power * STEPS + (unsigned)(blocks >> (power - 2) & 3);
}

static uint64_t least_of(unsigned size)
{
    return size < STEPS ? size : (uint64_t)(STEPS + size % STEPS) << (size / STEPS - 2);
}

static double middle_of(unsigned size)
{
    return size < STEPS ? size : (double)least_of(size) + ((double)(UINT64_C(1) << (size / STEPS - 2)) - 1) / 2;
}

/* The same function and block, and the smallest grid of the size. */
static struct launch_key rounded(const struct launch_key *key, unsigned size)
{
    uint64_t blocks = least_of(size);
    struct launch_key one = *key;
    one.dimensions[0] = blocks >> 31 == 0 ? UINT64_C(1) << 32 | blocks : (blocks >> 31) << 32 | UINT64_C(1) << 31;
    one.dimensions[1] = (key->dimensions[1] >> 32) << 32 | 1;
    return one;
}

/* ---- guesses ---- */

static struct point known_at(struct estimates *estimates, const struct launch_key *key, int size)
{
    struct point point = {0, 0};
    if (size < 1 || size >= SIZES || size / STEPS == 1)
        return point;
    struct launch_key at = rounded(key, (unsigned)size);
    const struct estimate *found = estimates_look(estimates, &at);
    if (found != NULL && !atomic_load_explicit(&found->guessed, memory_order_relaxed))
        point = (struct point){middle_of((unsigned)size), (double)estimate_ns(found)};
    return point;
}

static double between(struct point below, struct point above, double blocks)
{
    if (below.ns == 0 && above.ns == 0)
        return 0;
    if (below.ns == 0 || above.ns == 0 || above.blocks <= below.blocks) {
        struct point nearest = below.ns != 0 ? below : above;
        return nearest.ns * blocks / nearest.blocks;
    }
    return below.ns + (above.ns - below.ns) * (blocks - below.blocks) / (above.blocks - below.blocks);
}

static double from_nearest(struct estimates *estimates, const struct launch_key *key, double blocks)
{
    int size = (int)size_of(blocks < 1 ? 1 : blocks > 1e18 ? UINT64_C(1) << 60 : (uint64_t)blocks);
    struct point below = {0, 0}, above = {0, 0};
    for (int distance = 0; distance < SIZES && (below.ns == 0 || above.ns == 0); distance++) {
        below = below.ns == 0 ? known_at(estimates, key, size - distance) : below;
        above = above.ns == 0 ? known_at(estimates, key, size + distance) : above;
    }
    return between(below, above, blocks);
}

/* ---- blocks of another size ---- */

enum { PART = 20 };
#define PART_MASK ((UINT64_C(1) << PART) - 1)

/* A block's dimensions in one word: it has 1,024 threads at most. */
static uint64_t pack(const struct launch_key *key)
{
    uint64_t x = key->dimensions[1] >> 32, y = (uint32_t)key->dimensions[2], z = key->dimensions[2] >> 32;
    return (x & PART_MASK) << 2 * PART | (y & PART_MASK) << PART | (z & PART_MASK);
}

static struct launch_key with_block(const struct launch_key *key, uint64_t block)
{
    struct launch_key other = *key;
    other.dimensions[1] = block >> 2 * PART << 32 | (uint32_t)key->dimensions[1];
    other.dimensions[2] = (key->dimensions[2] & LAUNCH_TOGETHER) | (block & PART_MASK) << 32 | (block >> PART & PART_MASK);
    return other;
}

static double threads_of(uint64_t block)
{
    return (double)(block >> 2 * PART) * (double)(block >> PART & PART_MASK) * (double)(block & PART_MASK);
}

/* An entry of the function's own remembers a block that is known, or will be: no measurement ever gets there. */
static double from_another_block(struct estimates *estimates, const struct launch_key *key, double blocks)
{
    struct launch_key function = {key->handle, {UINT64_MAX, UINT64_MAX, UINT64_MAX}};
    struct estimate *remembered = estimates_find(estimates, &function);
    uint64_t own = pack(key), block = atomic_load_explicit(&remembered->ns, memory_order_relaxed);
    double ns = 0;
    if (block != own && threads_of(block) > 0) {
        struct launch_key other = with_block(key, block);
        ns = from_nearest(estimates, &other, blocks * threads_of(own) / threads_of(block));
    }
    if (ns == 0)
        atomic_store_explicit(&remembered->ns, own, memory_order_relaxed);
    return ns;
}

static double guess(struct estimates *estimates, const struct launch_key *key)
{
    double blocks = (double)blocks_of(key), ns = from_nearest(estimates, key, blocks);
    return ns > 0 ? ns : from_another_block(estimates, key, blocks);
}

struct estimate *guesses_find(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t blocks = blocks_of(key);
    if (blocks == 0)
        return estimates_find(estimates, key);
    struct launch_key class = rounded(key, size_of(blocks));
    struct estimate *found = estimates_find(estimates, &class);
    double ns = estimate_ns(found) == 0 ? guess(estimates, key) : 0;
    if (ns > 0)
        estimate_guess(found, ns > GUESSES_MOST_NS ? (uint64_t)GUESSES_MOST_NS : (uint64_t)ns);
    return found;
}
