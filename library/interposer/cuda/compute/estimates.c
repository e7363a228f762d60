/* See estimates.h. */
#include "estimates.h"

#include <stddef.h>

enum { PROBES = 8 };

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t identity_of(const struct launch_key *key)
{
    uint64_t hash = mix(UINT64_C(0x243F6A8885A308D3), key->handle);
    for (unsigned i = 0; i < 3; i++)
        hash = mix(hash, key->dimensions[i]);
    hash = mix(hash, hash >> 32);
    return hash == 0 ? 1 : hash;
}

static bool take(struct estimate *entry, uint64_t seen, uint64_t identity)
{
    if (!atomic_compare_exchange_strong_explicit(&entry->identity, &seen, identity, memory_order_acq_rel, memory_order_acquire))
        return seen == identity;
    atomic_store_explicit(&entry->ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->guessed, false, memory_order_relaxed);
    return true;
}

struct estimate *estimates_find(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t identity = identity_of(key);
    for (;;) {
        for (unsigned i = 0; i < PROBES; i++) {
            struct estimate *entry = &estimates->entries[(identity + i) % ESTIMATES_CAPACITY];
            uint64_t seen = atomic_load_explicit(&entry->identity, memory_order_acquire);
            if (seen == identity || (seen == 0 && take(entry, 0, identity)))
                return entry;
        }
        struct estimate *victim = &estimates->entries[(identity + (identity >> 40) % PROBES) % ESTIMATES_CAPACITY];
        if (take(victim, atomic_load_explicit(&victim->identity, memory_order_acquire), identity))
            return victim;
    }
}

void estimates_forget(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t identity = identity_of(key);
    for (unsigned i = 0; i < PROBES; i++) {
        struct estimate *entry = &estimates->entries[(identity + i) % ESTIMATES_CAPACITY];
        if (atomic_load_explicit(&entry->identity, memory_order_acquire) == identity)
            atomic_store_explicit(&entry->ns, 0, memory_order_relaxed);
    }
}

struct estimate *estimates_look(struct estimates *estimates, const struct launch_key *key)
{
    uint64_t identity = identity_of(key), seen = identity;
    for (unsigned i = 0; i < PROBES && seen != 0; i++) {
        struct estimate *entry = &estimates->entries[(identity + i) % ESTIMATES_CAPACITY];
        seen = atomic_load_explicit(&entry->identity, memory_order_acquire);
        if (seen == identity)
            return entry;
    }
    return NULL;
}

static void set(struct estimate *estimate, double ns)
{
    atomic_store_explicit(&estimate->ns, ns < 1 ? 1 : (uint64_t)(ns + 0.5), memory_order_relaxed);
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
