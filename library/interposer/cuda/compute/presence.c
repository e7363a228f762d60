/* See presence.h. */
#include "presence.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* Stretches closer than this are one: what lies between is a launch, not a pause. */
#define JOIN_NS UINT64_C(20000)
/* Neighbours look back some tens of milliseconds; with one entry in so long a time the ring reaches back a hundred. */
#define ENTRY_NS UINT64_C(400000)
/* Whoever measured nothing for so long has a long kernel. */
#define LONG_NS UINT64_C(20000000)

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

struct view {
    struct interval stretch;
    uint64_t now;
    bool long_only;
    struct presence_scratch *scratch;
};

static void add_edges(struct presence_scratch *scratch, struct interval part)
{
    if (scratch->count + 2 > PRESENCE_EDGES || part.end <= part.start)
        return;
    scratch->edges[scratch->count].time = part.start;
    scratch->edges[scratch->count++].change = 1;
    scratch->edges[scratch->count].time = part.end;
    scratch->edges[scratch->count++].change = -1;
}

static struct interval clip(struct interval part, struct interval to)
{
    return (struct interval){part.start > to.start ? part.start : to.start, part.end < to.end ? part.end : to.end};
}

/* False while it is being written, or when it was overwritten meanwhile. */
static bool read_entry(const struct activity_slot *slot, uint64_t number, struct interval *read)
{
    const struct activity_stretch *entry = &slot->ring[number % ACTIVITY_RING];
    read->end = atomic_load_explicit(&entry->end_ns, memory_order_acquire);
    read->start = atomic_load_explicit(&entry->start_ns, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&entry->end_ns, memory_order_relaxed) == 0)
        return false;
    return read->end > read->start && atomic_load_explicit(&slot->head, memory_order_relaxed) < number + ACTIVITY_RING;
}

/* How far the open stretch can be believed. */
static struct interval open_stretch(const struct activity_slot *slot, const struct view *view)
{
    uint64_t since = atomic_load_explicit(&slot->busy_since_ns, memory_order_acquire);
    uint64_t trusted = atomic_load_explicit(&slot->heartbeat_ns, memory_order_relaxed) + ACTIVITY_STALE_NS;
    if (since == 0 || (view->long_only && since + LONG_NS > view->now))
        return (struct interval){0, 0};
    return (struct interval){since, trusted < view->now ? trusted : view->now};
}

/* Streams of one process are measured out of order, so this is nearly sorted. */
static void insert(struct presence_scratch *scratch, struct interval part)
{
    unsigned place = scratch->part_count++;
    for (; place > 0 && scratch->parts[place - 1].start > part.start; place--)
        scratch->parts[place] = scratch->parts[place - 1];
    scratch->parts[place] = part;
}

/* A slot counts once at any instant, whatever it wrote. */
static void add_slot(struct presence_scratch *scratch)
{
    uint64_t reached = 0;
    for (unsigned i = 0; i < scratch->part_count; i++) {
        struct interval part = scratch->parts[i];
        add_edges(scratch, (struct interval){part.start > reached ? part.start : reached, part.end});
        reached = part.end > reached ? part.end : reached;
    }
}

/* From the newest back, until only old ones come. */
static void see_slot(const struct activity_slot *slot, const struct view *view)
{
    enum { MISSES = 16 };
    uint64_t head = atomic_load_explicit(&slot->head, memory_order_acquire);
    struct interval read = clip(open_stretch(slot, view), view->stretch);
    view->scratch->part_count = 0;
    if (read.end > read.start)
        insert(view->scratch, read);
    for (uint64_t back = 1, misses = 0; back <= head && back < ACTIVITY_RING && misses < MISSES; back++) {
        if (!read_entry(slot, head - back, &read))
            continue;
        struct interval part = clip(read, view->stretch);
        if (part.end > part.start)
            insert(view->scratch, part);
        else
            misses += read.end <= view->stretch.start;
    }
    add_slot(view->scratch);
}

static void see_row(const struct presence *presence, const struct activity_row *row, const struct view *view)
{
    uint32_t high = atomic_load_explicit(&row->slot_high, memory_order_acquire);
    for (uint32_t i = 0; i < high && i < REGION_SLOTS; i++) {
        if (&row->slots[i] != presence->own)
            see_slot(&row->slots[i], view);
    }
}

static int earlier(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void see_all(const struct presence *presence, const struct view *view)
{
    view->scratch->count = 0;
    if (presence->row != NULL)
        see_row(presence, presence->row, view);
    for (unsigned i = 0; i < presence->other_count; i++)
        see_row(presence, presence->others[i], view);
    qsort(view->scratch->edges, view->scratch->count, sizeof view->scratch->edges[0], earlier);
}

/* Walks through the stretch until `most` is had; where that was, and how much there was by then. */
struct walk {
    uint64_t at;
    double had;
};

static struct walk walk(const struct presence_scratch *scratch, struct interval stretch, double most)
{
    struct walk walk = {stretch.start, 0};
    int present = 1;
    for (unsigned i = 0; i <= scratch->count; i++) {
        uint64_t edge = i < scratch->count ? scratch->edges[i].time : stretch.end;
        double part = (double)(edge - walk.at) / present;
        if (walk.had + part >= most)
            return (struct walk){walk.at + (uint64_t)((most - walk.had) * present), most};
        walk = (struct walk){edge, walk.had + part};
        present += i < scratch->count ? scratch->edges[i].change : 0;
    }
    return walk;
}

uint64_t presence_share(const struct presence *presence, struct interval stretch, uint64_t now, struct presence_scratch *scratch)
{
    if (stretch.end <= stretch.start)
        return 0;
    see_all(presence, &(struct view){stretch, now, false, scratch});
    return (uint64_t)(walk(scratch, stretch, 1e300).had + 0.5);
}

uint64_t presence_reach(const struct presence *presence, struct interval stretch, uint64_t own_ns, uint64_t now,
                        struct presence_scratch *scratch)
{
    if (stretch.end <= stretch.start)
        return stretch.end;
    see_all(presence, &(struct view){stretch, now, true, scratch});
    return walk(scratch, stretch, (double)own_ns).at;
}
