/*
 * The parts of the interposer's memory accounting by themselves, in threads, for the sanitizers. Linked with ledger.c, charges.c, backing*.c and exports.c.
 *
 *   memory_parts ledger THREADS ROUNDS SLOTS   threads that share SLOTS slots take and give under one limit; ends at zero, never above it,
 *                                              and nobody is refused who fits
 *   memory_parts charges THREADS ROUNDS        threads that put and take their own keys; each charge comes back once
 *   memory_parts backing ROUNDS                random holders of memory against a plain list of them
 *   memory_parts shared                        memory that descriptors, imports and groups of GPUs hold too, each in a known order
 *   memory_parts again FILE                    the same after exec, while another process holds what the program before exported
 *
 * Out: "right", and 0; or what was wrong, and 1.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "interposer/cuda/memory/backing.h"
#include "interposer/cuda/memory/charges.h"
#include "interposer/cuda/memory/ledger.h"

enum { MOST_THREADS = 128, MOST_SLOTS = 64, KEYS = 400, UNITS = 1000 };

static struct region region;
static struct ledger_own mine[MOST_SLOTS][2];    /* of each slot's process, by device */
static struct charges charges;
static long rounds, slots, threads;
static _Atomic int64_t held;
static _Atomic int wrong;

static void expect(bool right, const char *what)
{
    if (right)
        return;
    if (atomic_exchange(&wrong, 1) == 0)
        puts(what);
}

static void in_threads(void *(*body)(void *))
{
    pthread_t made[MOST_THREADS];
    for (long i = 0; i < threads; i++)
        pthread_create(&made[i], NULL, body, (void *)(uintptr_t)(i + 1));
    for (long i = 0; i < threads; i++)
        pthread_join(made[i], NULL);
}

/* Small requests of all threads fit together; every fourth is for more than half, which only one can have. */
static void *take_and_give(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number;
    long slot = (long)(uintptr_t)number % slots;
    struct region_slot *own = &region.slots[slot];
    const uint64_t limit = (uint64_t)threads * UNITS * 4;
    for (long round = 0; round < rounds; round++) {
        bool large = round % 4 == 3;
        uint64_t bytes = large ? limit / 2 + 1 : 1 + (unsigned)rand_r(&seed) % UNITS;
        bool taken = ledger_take(&mine[slot][0], &region, own, 0, bytes, limit, NULL);
        expect(taken || large, "a small one was refused");
        if (!taken)
            continue;
        expect(atomic_fetch_add(&held, (int64_t)bytes) + (int64_t)bytes <= (int64_t)limit, "more than the limit");
        atomic_fetch_sub(&held, (int64_t)bytes);
        ledger_give(&mine[slot][0], own, 0, bytes);
    }
    return NULL;
}

/* No thread ever wants what does not fit. */
static void *always_fit(void *number)
{
    long slot = (long)(uintptr_t)number % slots;
    struct region_slot *own = &region.slots[slot];
    for (long round = 0; round < rounds; round++) {
        expect(ledger_take(&mine[slot][1], &region, own, 1, UNITS, (uint64_t)threads * UNITS, NULL), "refused although it fits");
        ledger_give(&mine[slot][1], own, 1, UNITS);
    }
    return NULL;
}

static void ledger_ends_at_zero(void)
{
    for (long i = 0; i < slots; i++)
        for (int device = 0; device < 2; device++) {
            const struct region_use *use = &region.slots[i].use[device];
            const struct ledger_own *own = &mine[i][device];
            expect(atomic_load(&use->used) == 0 && atomic_load(&use->pending) == 0 && atomic_load(&own->bytes) == 0, "something is left");
            expect(atomic_load(&own->takes) == atomic_load(&own->gives), "one was not counted");
        }
}

static void *put_and_take(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number;
    bool there[KEYS] = {false};
    for (long round = 0; round < rounds; round++) {
        unsigned which = (unsigned)rand_r(&seed) % KEYS;
        uint64_t key = ((uint64_t)(uintptr_t)number << 32) + ((uint64_t)which + 1) * 512;
        struct charge charge = {.bytes = key, .owner = number}, other;
        if (there[which])
            expect(charges_take(&charges, key, &other) && other.bytes == key && other.owner == number, "not what was put");
        else
            expect(!charges_take(&charges, key, &other) && charges_put(&charges, key, charge, &other) && other.bytes == 0, "it was there");
        there[which] = !there[which];
    }
    return NULL;
}

static void count_one(const struct charge *charge, void *counted)
{
    (void)charge;
    ++*(uint64_t *)counted;
}

static uint64_t charges_left(void)
{
    uint64_t left = 0;
    for (unsigned i = 0; i < CHARGES_SHARDS; i++)
        left += charges.shards[i].count;
    return left;
}

static void charges_by_owner(void)
{
    uint64_t before = charges_left(), counted = 0;
    for (long i = 0; i < threads; i++)
        charges_take_owned(&charges, (void *)(uintptr_t)(i + 1), count_one, &counted);
    expect(counted == before && charges_left() == 0, "owners did not have everything");
    expect(charges_ever(&charges), "nothing was ever there");
    charges_forget(&charges);
    expect(!charges_ever(&charges), "a child has something");
}

/* ---- backing ---- */

enum { PIECES = 64, PLACES = 256, UNIT = 1 << 21 };

struct piece {
    uint64_t handle;        /* 0: none */
    unsigned references, mappings;
};

static struct piece pieces[PIECES];
static int mapped[PLACES];      /* 1 + the piece; 0: nothing */
static uint64_t live, freed_bytes;

static void freed(const struct backing_loss *loss)
{
    expect(loss->device == 3, "another device's");
    freed_bytes += loss->bytes;
}

static void settle(struct piece *piece)
{
    if (piece->references != 0 || piece->mappings != 0 || piece->handle == 0)
        return;
    live -= UNIT;
    piece->handle = 0;
}

static void unmap(int from, int count)
{
    for (int at = from; at < from + count && at < PLACES; at++) {
        if (mapped[at] == 0)
            continue;
        struct piece *piece = &pieces[mapped[at] - 1];
        piece->mappings--;
        settle(piece);
        mapped[at] = 0;
    }
    backing_unmapped((uint64_t)from * UNIT, (uint64_t)count * UNIT, freed);
}

static void one_backing_step(unsigned *seed)
{
    static uint64_t next = 1000;
    int which = (int)((unsigned)rand_r(seed) % PIECES), at = (int)((unsigned)rand_r(seed) % PLACES);
    struct piece *piece = &pieces[which];
    switch ((unsigned)rand_r(seed) % 5) {
    case 0:
        if (piece->handle == 0) {
            *piece = (struct piece){next++, 1, 0};
            live += UNIT;
            expect(backing_created(piece->handle, 3, UNIT), "no memory");
        }
        break;
    case 1:
        if (piece->references > 0) {
            bool released = (unsigned)rand_r(seed) % 8 != 0;
            struct memory *memory = backing_release_begin(piece->handle);
            expect(memory != NULL, "unknown");
            if (released)
                piece->references--;
            backing_release_end(memory, piece->handle, released, freed);
            settle(piece);
        }
        break;
    case 2:
        if (piece->references > 0 && mapped[at] == 0) {
            bool agreed = (unsigned)rand_r(seed) % 8 != 0;
            struct memory *memory = backing_map_begin(piece->handle);
            expect(memory != NULL, "unknown");
            if (agreed) {
                mapped[at] = which + 1;
                piece->mappings++;
            }
            expect(backing_map_end(memory, (uint64_t)at * UNIT, UNIT, agreed, freed), "no memory");
        }
        break;
    case 3:
        unmap(at, 1 + (int)((unsigned)rand_r(seed) % 8));
        break;
    default:
        if (mapped[at] != 0) {
            pieces[mapped[at] - 1].references++;
            expect(backing_retained(pieces[mapped[at] - 1].handle, (uint64_t)at * UNIT + 5), "no memory");
        }
    }
}

static void backing(void)
{
    unsigned seed = 1;
    uint64_t created = 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t before = live, freed_before = freed_bytes;
        one_backing_step(&seed);
        if (live > before)
            created += live - before;
        expect(created - freed_bytes == live, "memory counts without a holder, or does not with one");
        expect(freed_bytes >= freed_before, "freed twice");
    }
    backing_forget();
}

/* Created, bound or exported, and released: what is free then. */
static uint64_t released(uint64_t handle, int descriptor, bool agreed)
{
    uint32_t owner = 0;
    uint64_t before = freed_bytes;
    expect(backing_created(handle, 3, UNIT), "no memory");
    struct memory *memory = backing_export_begin(handle, &owner);
    expect(owner == (uint32_t)getpid(), "another owner");
    backing_export_end(memory, agreed, descriptor, owner, freed);
    backing_release_end(backing_release_begin(handle), handle, true, freed);
    backing_settle(freed);
    return freed_bytes - before;
}

static uint64_t settled(void)
{
    uint64_t before = freed_bytes;
    backing_settle(freed);
    return freed_bytes - before;
}

/* An import of memory that this process exported: which it is nobody knows, so all counts on. */
static void own_import(void)
{
    struct backing_import own = {.origin = BACKING_OWN, .device = 3};
    char name[] = "/dev/shm/memory_parts.XXXXXX";
    int descriptor = mkstemp(name);
    expect(released(50, descriptor, true) == 0, "free while it is exported");
    expect(backing_imported(51, &own) == BACKING_NEW && backing_imported(51, &own) == BACKING_KNOWN, "not what it is");
    close(descriptor);
    unlink(name);
    expect(settled() == 0 && backing_apart(3) == UNIT, "free while it is imported");
    for (int i = 0; i < 2; i++)
        backing_release_end(backing_release_begin(51), 51, true, freed);
    expect(settled() == UNIT && backing_apart(3) == 0, "kept for nobody");
}

static void shared(void)
{
    char name[] = "/dev/shm/memory_parts.XXXXXX";
    int descriptor = mkstemp(name), copy = dup(descriptor);
    expect(released(10, -1, false) == UNIT, "kept although the driver refused");
    expect(released(20, descriptor, true) == 0 && backing_apart(3) == UNIT, "free while it is exported");
    close(descriptor);
    expect(settled() == 0, "free while a copy is open");
    close(copy);
    expect(settled() == UNIT && backing_apart(3) == 0, "kept for nobody");
    unlink(name);
    own_import();
    expect(released(30, -1, true) == 0 && settled() == 0, "free while it is bound");
    expect(backing_apart(3) == UNIT, "not apart");
    char parents[] = "/dev/shm/memory_parts.XXXXXX";
    descriptor = mkstemp(parents);
    expect(released(40, descriptor, true) == 0, "free while it is exported");
    backing_forget();
    close(descriptor);
    expect(backing_apart(3) == 0 && settled() == 0, "freed in a child, or kept");
    unlink(parents);
}

/* All descriptors are of one file, as NVIDIA's are of one device node. */
static void become_another(void)
{
    char name[] = "/dev/shm/memory_parts.XXXXXX";
    int descriptor = mkstemp(name), holds[2];
    char held;
    expect(released(60, descriptor, true) == 0 && pipe(holds) == 0, "free while it is exported");
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (write(holds[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    expect(read(holds[0], &held, 1) == 1, "nobody holds it");
    close(descriptor);
    execl("/proc/self/exe", "memory_parts", "again", name, NULL);
}

static void again(const char *name)
{
    for (int i = 0; i < 20; i++) {
        int descriptor = open(name, O_RDWR);
        expect(released(61, descriptor, true) == 0, "free while it is exported");
        close(descriptor);
        expect(settled() == UNIT, "kept for what the program before exported");
    }
    unlink(name);
}

int main(int count, char **words)
{
    atomic_store(&region.slot_high, MOST_SLOTS);
    if (count == 5 && strcmp(words[1], "ledger") == 0) {
        threads = strtol(words[2], NULL, 10);
        rounds = strtol(words[3], NULL, 10);
        slots = strtol(words[4], NULL, 10);
        in_threads(take_and_give);
        in_threads(always_fit);
        ledger_ends_at_zero();
    } else if (count == 4 && strcmp(words[1], "charges") == 0) {
        threads = strtol(words[2], NULL, 10);
        rounds = strtol(words[3], NULL, 10);
        in_threads(put_and_take);
        charges_by_owner();
    } else if (count == 3 && strcmp(words[1], "backing") == 0) {
        rounds = strtol(words[2], NULL, 10);
        backing();
    } else if (count == 2 && strcmp(words[1], "shared") == 0) {
        shared();
        if (atomic_load(&wrong) == 0)
            become_another();
    } else if (count == 3 && strcmp(words[1], "again") == 0) {
        again(words[2]);
    } else {
        return 2;
    }
    if (atomic_load(&wrong) == 0)
        puts("right");
    return atomic_load(&wrong);
}
