/* See estimates.h. */
#include "estimates.h"

#include <stddef.h>

enum { PROBES = 8 };

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

/* A kernel that waits for another GPU needs all its blocks on this one: it says so, or has few. A graph can contain one. */
static bool can_wait(const struct estimates *estimates, const struct launch_key *key)
{
    uint64_t gx = (uint32_t)key->dimensions[0], gy = key->dimensions[0] >> 32, gz = (uint32_t)key->dimensions[1];
    if ((key->dimensions[2] & LAUNCH_TOGETHER) != 0)
        return true;
    uint32_t few = atomic_load_explicit(&estimates->few_blocks, memory_order_relaxed);
    return gx <= few && gy <= few && gx * gy <= few && gx * gy * gz <= few;
}

static uint64_t identity_of(const struct estimates *estimates, const struct launch_key *key)
{
    uint64_t hash = mix(UINT64_C(0x243F6A8885A308D3), key->handle);
    for (unsigned i = 0; i < 3; i++)
        hash = mix(hash, key->dimensions[i]);
    hash = mix(hash, hash >> 32) & ~UINT64_C(1);
    return can_wait(estimates, key) ? hash | 1 : hash == 0 ? 2 : hash;
}

static void clear(struct estimate *entry)
{
    atomic_store_explicit(&entry->ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->least_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->calm, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->waits, false, memory_order_relaxed);
    atomic_store_explicit(&entry->guessed, false, memory_order_relaxed);
}

static bool take(struct estimate *entry, uint64_t seen, uint64_t identity)
{
    if (!atomic_compare_exchange_strong_explicit(&entry->identity, &seen, identity, memory_order_acq_rel, memory_order_acquire))
        return seen == identity;
    clear(entry);
    return true;
}

struct estimate *estimates_find(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t identity = identity_of(estimates, key);
    for (;;) {
        for (unsigned i = 0; i < PROBES; i++) {
            struct estimate *entry = &estimates->entries[((identity >> 1) + i) % ESTIMATES_CAPACITY];
            uint64_t seen = atomic_load_explicit(&entry->identity, memory_order_acquire);
            if (seen == identity || (seen == 0 && take(entry, 0, identity)))
                return entry;
        }
        struct estimate *victim = &estimates->entries[((identity >> 1) + (identity >> 40) % PROBES) % ESTIMATES_CAPACITY];
        if (take(victim, atomic_load_explicit(&victim->identity, memory_order_acquire), identity))
            return victim;
    }
}

void estimates_forget(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t identity = identity_of(estimates, key);
    for (unsigned i = 0; i < PROBES; i++) {
        struct estimate *entry = &estimates->entries[((identity >> 1) + i) % ESTIMATES_CAPACITY];
        if (atomic_load_explicit(&entry->identity, memory_order_acquire) == identity)
            clear(entry);
    }
}

struct estimate *estimates_look(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t identity = identity_of(estimates, key), seen = identity;
    for (unsigned i = 0; i < PROBES && seen != 0; i++) {
        struct estimate *entry = &estimates->entries[((identity >> 1) + i) % ESTIMATES_CAPACITY];
        seen = atomic_load_explicit(&entry->identity, memory_order_acquire);
        if (seen == identity)
            return entry;
    }
    return NULL;
}

static void set(struct estimate *estimate, double ns)
{
    uint64_t before = estimate_word(estimate), word = ns < 1 ? 1 : (uint64_t)(ns + 0.5);
    while (!atomic_compare_exchange_weak(&estimate->ns, &before, word | (before & ESTIMATE_ALONE)))
        ;
}

void estimate_set_alone(struct estimate *estimate, bool alone)
{
    if (alone)
        atomic_fetch_or(&estimate->ns, ESTIMATE_ALONE);
    else
        atomic_fetch_and(&estimate->ns, ~ESTIMATE_ALONE);
}

void estimate_learn(struct estimate *estimate, uint64_t ns)
{
    double known = (double)estimate_ns(estimate);
    if (known == 0)
        set(estimate, (double)ns);
    else
        estimate_scale(estimate, (double)ns / known);
}

void estimate_guess(struct estimate *estimate, uint64_t ns)
{
    uint64_t unknown = 0;
    atomic_store_explicit(&estimate->guessed, true, memory_order_relaxed);
    if (!atomic_compare_exchange_strong(&estimate->ns, &unknown, ns < 1 ? 1 : ns))
        atomic_store_explicit(&estimate->guessed, false, memory_order_relaxed);
}

/* Half of the news counts, and all of it where there was a guess. More than a factor of four away, it is the thread that was not running as often as it is the kernel. */
void estimate_scale(struct estimate *estimate, double scale)
{
    double bounded = scale > 4 ? 4 : scale < 0.25 ? 0.25 : scale;
    double known = (double)estimate_ns(estimate);
    bool guessed = atomic_load_explicit(&estimate->guessed, memory_order_relaxed);
    if (known == 0)
        return;
    set(estimate, guessed ? known * scale : known * (1 + (bounded - 1) / 2));
    if (guessed)
        atomic_store_explicit(&estimate->guessed, false, memory_order_relaxed);
}
