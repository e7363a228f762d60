/* See presence.h. */
#include "presence.h"

#include <stdbool.h>
#include <stddef.h>

/* Stretches closer than this are one: what lies between is a launch, not a pause. */
#define JOIN_NS UINT64_C(20000)
/* Neighbours look back some tens of milliseconds; with one entry in so long a time the ring reaches back a hundred. */
#define ENTRY_NS UINT64_C(400000)
/* A process that measured nothing for so long has a long kernel. */
#define LONG_NS UINT64_C(20000000)

/* Entries that are looked at in one look, and of one row: enough for some tens of milliseconds back in 128 slots. */
enum { LOOKS_MOST = 131072, LOOKS_ROW = 16384 };

static struct activity_stretch *entry_of(struct activity_slot *slot, uint64_t number)
{
    return &slot->ring[number % ACTIVITY_RING];
}

static void write_entry(struct activity_slot *own, uint64_t head, struct interval stretch)
{
    struct activity_stretch *entry = entry_of(own, head);
    atomic_store_explicit(&entry->end_ns, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&entry->start_ns, stretch.start, memory_order_relaxed);
    atomic_store_explicit(&entry->end_ns, stretch.end, memory_order_release);
    atomic_store_explicit(&own->head, head + 1, memory_order_release);
}

/* Lengthens the newest entry where the stretch follows it at once, or by its length where it comes so soon that entries would be too many. */
static bool joined(struct activity_slot *own, uint64_t head, struct interval stretch)
{
    if (head == 0)
        return false;
    struct activity_stretch *newest = entry_of(own, head - 1);
    uint64_t start = atomic_load_explicit(&newest->start_ns, memory_order_relaxed);
    uint64_t end = atomic_load_explicit(&newest->end_ns, memory_order_relaxed);
    if (stretch.start < start || (stretch.start > end + JOIN_NS && stretch.start > start + ENTRY_NS))
        return false;
    uint64_t packed = end + (stretch.end - stretch.start), wanted = stretch.start > end + JOIN_NS ? packed : stretch.end;
    if (wanted > end)
        atomic_store_explicit(&newest->end_ns, wanted, memory_order_release);
    return true;
}

void presence_publish(struct activity_slot *own, struct interval stretch)
{
    if (own == NULL || stretch.end <= stretch.start)
        return;
    uint64_t head = atomic_load_explicit(&own->head, memory_order_relaxed);
    if (!joined(own, head, stretch))
        write_entry(own, head, stretch);
    atomic_fetch_add_explicit(&own->busy_ns, stretch.end - stretch.start, memory_order_relaxed);
}

void presence_busy(struct activity_slot *own, uint64_t since, uint64_t now)
{
    if (own == NULL)
        return;
    atomic_store_explicit(&own->heartbeat_ns, now, memory_order_relaxed);
    atomic_store_explicit(&own->busy_since_ns, since, memory_order_release);
}

/* ---- reading ---- */

_Static_assert(EDGES_OWNERS == PRESENCE_ROWS + 1, "an owner for each row, and for our own");

struct view {
    const struct presence *presence;
    struct interval stretch;
    uint64_t now;
    bool long_only;
    struct edges *edges;
    unsigned looks, looks_row;          /* left, and of this row */
};

/* Nobody measures what is to come: a time so far ahead is a mistake, or a claim on all times. */
static bool is_to_come(uint64_t time, const struct view *view)
{
    return time > view->now + ACTIVITY_STALE_NS;
}

/* False while it is being written, or when it was overwritten meanwhile. */
static bool read_entry(const struct activity_slot *slot, uint64_t number, const struct view *view, struct interval *read)
{
    const struct activity_stretch *entry = &slot->ring[number % ACTIVITY_RING];
    read->end = atomic_load_explicit(&entry->end_ns, memory_order_acquire);
    read->start = atomic_load_explicit(&entry->start_ns, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&entry->end_ns, memory_order_relaxed) == 0)
        return false;
    *read = (struct interval){presence_heard(view->presence, read->start), presence_heard(view->presence, read->end)};
    return read->end > read->start && atomic_load_explicit(&slot->head, memory_order_relaxed) < number + ACTIVITY_RING;
}

/* How far the open stretch can be believed. */
static struct interval open_stretch(const struct activity_slot *slot, const struct view *view)
{
    uint64_t since = atomic_load_explicit(&slot->busy_since_ns, memory_order_acquire);
    uint64_t heartbeat = atomic_load_explicit(&slot->heartbeat_ns, memory_order_relaxed);
    bool idle = since == 0;
    since = presence_heard(view->presence, since);
    heartbeat = presence_heard(view->presence, heartbeat);
    if (idle || is_to_come(since, view) || is_to_come(heartbeat, view) || (view->long_only && since + LONG_NS > view->now))
        return (struct interval){0, 0};
    uint64_t trusted = heartbeat + ACTIVITY_STALE_NS;
    return (struct interval){since, trusted < view->now ? trusted : view->now};
}

/* From the newest back, until only old ones come, or what nobody can have written in good faith. */
static void see_slot(const struct activity_slot *slot, struct view *view)
{
    enum { MISSES = 16 };
    uint64_t head = atomic_load_explicit(&slot->head, memory_order_acquire);
    struct interval read = open_stretch(slot, view);
    if (read.end > read.start)
        edges_add(view->edges, read);
    for (uint64_t back = 1, misses = 0; back <= head && back < ACTIVITY_RING && misses < MISSES; back++) {
        if (view->looks_row == 0 || edges_full(view->edges))
            return;
        view->looks_row--;
        bool whole = read_entry(slot, head - back, view, &read);
        if (whole && is_to_come(read.end, view))
            return;
        if (whole)
            edges_add(view->edges, read);
        misses += !whole || read.end <= view->stretch.start;
    }
}

static void see_row(const struct presence *presence, const struct activity_row *row, unsigned owner, struct view *view)
{
    unsigned sharers = presence->other_count + 1 - owner, share = view->looks / sharers;
    unsigned before = view->looks_row = share < LOOKS_ROW ? share : LOOKS_ROW;
    uint32_t high = atomic_load_explicit(&row->slot_high, memory_order_acquire);
    edges_share(view->edges, sharers);
    for (uint32_t i = 0; i < high && i < REGION_SLOTS; i++) {
        if (&row->slots[i] == presence->own)
            continue;
        edges_slot(view->edges, owner);
        see_slot(&row->slots[i], view);
    }
    view->looks -= before - view->looks_row;
}

static void assume(const struct presence *presence, const struct claim *claim, unsigned owner, struct view *view)
{
    struct interval part = view->stretch;
    part.end = part.start + claim_present(claim, part.end - part.start);
    edges_share(view->edges, presence->other_count + 1 - owner);
    edges_slot(view->edges, owner);
    edges_add(view->edges, part);
}

/* The container's own row comes last, and has what the others left. */
static void see_all(const struct presence *presence, struct view *view)
{
    edges_begin(view->edges, view->stretch, presence->other_count + 1);
    for (unsigned i = 0; i < presence->other_count; i++) {
        const struct presence_other *other = &presence->others[i];
        if (other->claim != NULL && other->claim->assumed)
            assume(presence, other->claim, i, view);
        else if (other->claim == NULL || !other->claim->spent)
            see_row(presence, other->row, i, view);
    }
    if (presence->row != NULL)
        see_row(presence, presence->row, presence->other_count, view);
}

uint64_t presence_share(const struct presence *presence, struct interval stretch, uint64_t now, struct edges *edges)
{
    if (stretch.end <= stretch.start)
        return 0;
    see_all(presence, &(struct view){presence, stretch, now, false, edges, .looks = LOOKS_MOST});
    return (uint64_t)(edges_walk(edges, 1e300).had_ns + 0.5);
}

uint64_t presence_reach(const struct presence *presence, struct interval stretch, uint64_t own_ns, uint64_t now, struct edges *edges)
{
    if (stretch.end <= stretch.start)
        return stretch.end;
    see_all(presence, &(struct view){presence, stretch, now, true, edges, .looks = LOOKS_MOST});
    return edges_walk(edges, (double)own_ns).at;
}

void presence_draw(const struct presence *presence, const struct edges *edges)
{
    uint64_t length = edges->stretch.end - edges->stretch.start;
    for (unsigned i = 0; i < presence->other_count; i++) {
        if (presence->others[i].claim != NULL)
            claim_draw(presence->others[i].claim, length, edges->owners[i].taken_ns);
    }
}
