/* See edges.h. A key is, from the top: time 32 bits, slot, 1 for a beginning. */
#include "edges.h"

#include <string.h>

enum { DIGITS = 256, TIME_AT = 32 };

void edges_begin(struct edges *edges, struct interval stretch, unsigned owners)
{
    edges->stretch = stretch;
    edges->shift = 0;
    while ((stretch.end - stretch.start) >> edges->shift > UINT32_MAX)
        edges->shift++;
    edges->count = edges->slot_count = 0;
    edges->room = EDGES_MOST;
    edges->owner_count = owners;
    memset(edges->owners, 0, owners * sizeof edges->owners[0]);
}

void edges_share(struct edges *edges, unsigned sharers)
{
    edges->room = edges->count + (EDGES_MOST - edges->count) / (sharers == 0 ? 1 : sharers);
}

/* The one before keeps its place only if it had parts. */
void edges_slot(struct edges *edges, unsigned owner)
{
    if (edges->slot_count == 0 || edges->slots[edges->slot_count - 1].depth != 0)
        edges->slot_count++;
    edges->slots[edges->slot_count - 1] = (struct edges_slot){0, (uint16_t)owner};
}

void edges_add(struct edges *edges, struct interval part)
{
    const struct interval *in = &edges->stretch;
    uint64_t start = (part.start > in->start ? part.start : in->start) - in->start;
    uint64_t end = part.end < in->end ? part.end : in->end;
    end = end < in->start ? 0 : end - in->start;
    start >>= edges->shift;
    end >>= edges->shift;
    if (end <= start || edges_full(edges))
        return;
    uint64_t slot = edges->slot_count - 1;
    edges->slots[slot].depth = 1;
    edges->keys[edges->count++] = start << TIME_AT | slot << 1 | 1;
    edges->keys[edges->count++] = end << TIME_AT | slot << 1;
}

/* One digit of the time, stable. */
static void sort_digit(const uint64_t *from, uint64_t *into, unsigned count, unsigned at)
{
    unsigned places[DIGITS] = {0}, place = 0;
    for (unsigned i = 0; i < count; i++)
        places[from[i] >> at & (DIGITS - 1)]++;
    for (unsigned digit = 0; digit < DIGITS; digit++) {
        unsigned here = places[digit];
        places[digit] = place;
        place += here;
    }
    for (unsigned i = 0; i < count; i++)
        into[places[from[i] >> at & (DIGITS - 1)]++] = from[i];
}

static void sort_few(uint64_t *keys, unsigned count)
{
    for (unsigned i = 1; i < count; i++) {
        uint64_t key = keys[i];
        unsigned place = i;
        for (; place > 0 && keys[place - 1] > key; place--)
            keys[place] = keys[place - 1];
        keys[place] = key;
    }
}

/* In `keys`, whatever came. */
static void sort(struct edges *edges)
{
    enum { FEW = 32 };
    uint64_t length = (edges->stretch.end - edges->stretch.start) >> edges->shift;
    uint64_t *from = edges->keys, *into = edges->spare;
    if (edges->count <= FEW) {
        sort_few(edges->keys, edges->count);
        return;
    }
    for (unsigned at = 0; length >> at != 0; at += 8) {
        uint64_t *sorted = into;
        sort_digit(from, into, edges->count, TIME_AT + at);
        into = from;
        from = sorted;
    }
    if (from != edges->keys)
        memcpy(edges->keys, from, edges->count * sizeof from[0]);
}

static void settle(struct edges_owner *owner, double had)
{
    owner->taken_ns += owner->present * (had - owner->since);
    owner->since = had;
}

/* By how much more, or fewer, are there now. */
static int pass(struct edges *edges, uint64_t key, double had)
{
    struct edges_slot *slot = &edges->slots[(uint32_t)key >> 1];
    struct edges_owner *owner = &edges->owners[slot->owner];
    bool begins = (key & 1) != 0;
    if (begins ? slot->depth++ != 0 : --slot->depth != 0)
        return 0;
    settle(owner, had);
    owner->present += begins ? 1 : -1;
    return begins ? 1 : -1;
}

static struct edges_walk walk(struct edges *edges, double most)
{
    uint64_t length = edges->stretch.end - edges->stretch.start, at = 0;
    double had = 0;
    int present = 1;
    for (unsigned i = 0; i <= edges->count; i++) {
        uint64_t edge = i < edges->count ? edges->keys[i] >> TIME_AT << edges->shift : length;
        if (edge > at) {
            double part = (double)(edge - at) / present;
            if (had + part >= most)
                return (struct edges_walk){at + (uint64_t)((most - had) * present), most};
            had += part;
            at = edge;
        }
        present += i < edges->count ? pass(edges, edges->keys[i], had) : 0;
    }
    return (struct edges_walk){length, had};
}

struct edges_walk edges_walk(struct edges *edges, double most_ns)
{
    sort(edges);
    for (unsigned i = 0; i < edges->slot_count; i++)
        edges->slots[i].depth = 0;
    struct edges_walk walked = walk(edges, most_ns);
    for (unsigned i = 0; i < edges->owner_count; i++)
        settle(&edges->owners[i], walked.had_ns);
    walked.at += edges->stretch.start;
    return walked;
}
