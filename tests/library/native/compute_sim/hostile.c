/*
 * A container that writes what it likes into its activity row, and does no work.
 *
 * In: which lie, the time. Out: its row. The lies:
 *   one, many        a process, or 128, always on the GPU
 *   flapping         128, every other 20 ms
 *   rings            128 with full rings of stretches of the last tenth of a second, in no order
 *   forever          stretches, heartbeats and requests in the far future, and impossible limits
 *   overflowing      the same at the end of what a word holds
 *   random           anything, anywhere
 */
#include "sim.h"

enum { LIARS = 128 };

static void be_busy(struct activity_row *row, unsigned liars)
{
    atomic_store(&row->slot_high, liars);
    for (unsigned i = 0; i < liars; i++) {
        atomic_store(&row->slots[i].heartbeat_ns, now_ns);
        atomic_store(&row->slots[i].busy_since_ns, 1);
    }
}

static void fill_rings(struct activity_row *row)
{
    atomic_store(&row->slot_high, LIARS);
    for (unsigned i = 0; i < LIARS; i++) {
        struct activity_slot *slot = &row->slots[i];
        for (unsigned k = 0; k < ACTIVITY_RING; k++) {
            uint64_t start = now_ns - random_below(SECOND / 10);
            atomic_store(&slot->ring[k].start_ns, start);
            atomic_store(&slot->ring[k].end_ns, start + random_below(SECOND / 100));
        }
        atomic_store(&slot->head, ACTIVITY_RING);
    }
}

static void claim_all(struct activity_row *row, uint64_t last)
{
    atomic_store(&row->slot_high, UINT32_MAX);
    atomic_store(&row->wanted_ns, last);
    atomic_store(&row->soft_cores, UINT32_MAX);
    for (unsigned i = 0; i < LIARS; i++) {
        struct activity_slot *slot = &row->slots[i];
        atomic_store(&slot->heartbeat_ns, last);
        atomic_store(&slot->busy_since_ns, 1);
        atomic_store(&slot->head, last);
        for (unsigned k = 0; k < ACTIVITY_RING; k++) {
            atomic_store(&slot->ring[k].start_ns, 1);
            atomic_store(&slot->ring[k].end_ns, last);
        }
    }
}

/* A number of any size, often near the time it is. */
static uint64_t any(void)
{
    uint64_t bits = random_below(64), value = random_below(UINT64_MAX) >> bits;
    return random_below(2) == 0 ? value : now_ns + SECOND / 10 - random_below(SECOND / 5);
}

static void scribble(struct activity_row *row)
{
    atomic_store(&row->slot_high, (uint32_t)any());
    atomic_store(&row->cores, (uint32_t)any());
    atomic_store(&row->soft_cores, (uint32_t)any());
    atomic_store(&row->wanted_ns, any());
    for (unsigned i = 0; i < LIARS; i++) {
        struct activity_slot *slot = &row->slots[i];
        atomic_store(&slot->heartbeat_ns, any());
        atomic_store(&slot->busy_since_ns, any());
        atomic_store(&slot->head, any());
        for (unsigned k = 0; k < 4; k++) {
            atomic_store(&slot->ring[random_below(ACTIVITY_RING)].start_ns, any());
            atomic_store(&slot->ring[random_below(ACTIVITY_RING)].end_ns, any());
        }
    }
}

void lie(struct container *container)
{
    struct activity_row *row = container->row;
    const char *what = container->lies;
    container->lies_again = now_ns + SECOND / 50;
    atomic_store(&row->wanted_ns, now_ns);
    atomic_store(&row->cores, UINT32_MAX);
    if (strcmp(what, "one") == 0)
        be_busy(row, 1);
    else if (strcmp(what, "many") == 0)
        be_busy(row, LIARS);
    else if (strcmp(what, "flapping") == 0)
        be_busy(row, now_ns / (SECOND / 50) % 2 == 0 ? LIARS : 0);
    else if (strcmp(what, "rings") == 0)
        fill_rings(row);
    else if (strcmp(what, "forever") == 0)
        claim_all(row, UINT64_MAX / 2);
    else if (strcmp(what, "overflowing") == 0)
        claim_all(row, UINT64_MAX - random_below(SECOND));
    else if (strcmp(what, "random") == 0)
        scribble(row);
    else
        exit(2);
}
