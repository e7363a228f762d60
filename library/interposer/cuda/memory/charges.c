/*
 * Charges by address; see charges.h. Open addressing with linear probing in each shard, at most three quarters full; a hole is closed by
 * moving later entries back, so there are no marks of the dead and a lookup ends at the first empty place.
 */
#include "charges.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_CAPACITY = 128 };

static uint64_t hash(uint64_t key)
{
    key *= UINT64_C(0x9E3779B97F4A7C15);
    return key ^ key >> 32;
}

static struct charges_shard *shard_of(struct charges *charges, uint64_t key)
{
    return &charges->shards[hash(key) >> 58];
}

/* Where the key is, or the empty place where it belongs. */
static uint64_t place(const struct charges_shard *shard, uint64_t key)
{
    uint64_t mask = shard->capacity - 1, at = hash(key) & mask;

    while (shard->entries[at].key != 0 && shard->entries[at].key != key)
        at = (at + 1) & mask;
    return at;
}

static bool grow(struct charges_shard *shard)
{
    struct charges_shard bigger = {.capacity = shard->capacity ? 2 * shard->capacity : FIRST_CAPACITY};
    size_t bytes = bigger.capacity * sizeof(*bigger.entries);

    bigger.entries = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bigger.entries == MAP_FAILED)
        return false;
    for (uint64_t i = 0; i < shard->capacity; i++)
        if (shard->entries[i].key != 0)
            bigger.entries[place(&bigger, shard->entries[i].key)] = shard->entries[i];
    if (shard->capacity != 0)
        munmap(shard->entries, shard->capacity * sizeof(*shard->entries));
    shard->entries = bigger.entries;
    shard->capacity = bigger.capacity;
    return true;
}

/* An entry may move back into the hole unless its home lies behind the hole. */
static void close_hole(struct charges_shard *shard, uint64_t hole)
{
    uint64_t mask = shard->capacity - 1;

    for (uint64_t at = (hole + 1) & mask; shard->entries[at].key != 0; at = (at + 1) & mask) {
        uint64_t home = hash(shard->entries[at].key) & mask;

        if (((at - home) & mask) >= ((at - hole) & mask)) {
            shard->entries[hole] = shard->entries[at];
            hole = at;
        }
    }
    shard->entries[hole] = (struct charges_entry){0};
}

bool charges_put(struct charges *charges, uint64_t key, struct charge charge, struct charge *replaced)
{
    struct charges_shard *shard = shard_of(charges, key);
    bool stored;

    *replaced = (struct charge){0};
    short_lock_take(&shard->lock);
    stored = 4 * (shard->count + 1) <= 3 * shard->capacity || grow(shard);
    if (stored) {
        struct charges_entry *entry = &shard->entries[place(shard, key)];

        *replaced = entry->charge;
        shard->count += entry->key == 0;
        *entry = (struct charges_entry){key, charge};
        if (!charges_ever(charges))
            atomic_store_explicit(&charges->ever, true, memory_order_relaxed);
    }
    short_lock_give(&shard->lock);
    return stored;
}

bool charges_has(struct charges *charges, uint64_t key)
{
    struct charges_shard *shard = shard_of(charges, key);

    short_lock_take(&shard->lock);
    bool found = shard->count != 0 && key != 0 && shard->entries[place(shard, key)].key == key;
    short_lock_give(&shard->lock);
    return found;
}

static void remove_at(struct charges_shard *shard, uint64_t at)
{
    close_hole(shard, at);
    shard->count--;
}

bool charges_take(struct charges *charges, uint64_t key, struct charge *taken)
{
    struct charges_shard *shard = shard_of(charges, key);
    bool found = false;

    short_lock_take(&shard->lock);
    if (shard->count != 0 && key != 0) {
        uint64_t at = place(shard, key);

        found = shard->entries[at].key == key;
        if (found) {
            *taken = shard->entries[at].charge;
            remove_at(shard, at);
        }
    }
    short_lock_give(&shard->lock);
    return found;
}

void charges_take_owned(struct charges *charges, const void *owner, charges_visitor *visit, void *context)
{
    for (unsigned i = 0; i < CHARGES_SHARDS; i++) {
        struct charges_shard *shard = &charges->shards[i];

        short_lock_take(&shard->lock);
        for (uint64_t at = 0; at < shard->capacity && shard->count != 0;) {
            if (shard->entries[at].key == 0 || shard->entries[at].charge.owner != owner) {
                at++;
                continue;
            }
            visit(&shard->entries[at].charge, context);
            remove_at(shard, at);
        }
        short_lock_give(&shard->lock);
    }
}

void charges_forget(struct charges *charges)
{
    for (unsigned i = 0; i < CHARGES_SHARDS; i++) {
        struct charges_shard *shard = &charges->shards[i];

        if (shard->capacity != 0)
            munmap(shard->entries, shard->capacity * sizeof(*shard->entries));
        memset(shard, 0, sizeof(*shard));
    }
    atomic_store(&charges->ever, false);
}
