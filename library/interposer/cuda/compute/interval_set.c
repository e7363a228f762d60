/* See interval_set.h. */
#include "interval_set.h"

#include <string.h>

static void replace(struct interval_set *set, unsigned first, unsigned end, struct interval with)
{
    unsigned tail = set->count - end;
    memmove(&set->intervals[first + 1], &set->intervals[end], tail * sizeof set->intervals[0]);
    set->intervals[first] = with;
    set->count = first + 1 + tail;
}

/* One place is kept free for what is inserted between two. */
static void make_room(struct interval_set *set)
{
    if (set->count < INTERVAL_SET_MOST)
        return;
    memmove(&set->intervals[0], &set->intervals[1], (set->count - 1) * sizeof set->intervals[0]);
    set->count--;
}

unsigned interval_set_add(struct interval_set *set, struct interval added, struct interval parts[static INTERVAL_SET_MOST + 1])
{
    unsigned found = 0;
    if (added.end <= added.start)
        return 0;
    make_room(set);
    unsigned first = 0;
    while (first < set->count && set->intervals[first].end < added.start)
        first++;
    struct interval merged = added;
    uint64_t reached = added.start;
    unsigned next = first;
    for (; next < set->count && set->intervals[next].start <= added.end; next++) {
        struct interval old = set->intervals[next];
        if (old.start > reached)
            parts[found++] = (struct interval){reached, old.start};
        reached = old.end > reached ? old.end : reached;
        merged.start = old.start < merged.start ? old.start : merged.start;
        merged.end = old.end > merged.end ? old.end : merged.end;
    }
    if (reached < added.end)
        parts[found++] = (struct interval){reached, added.end};
    replace(set, first, next, merged);
    return found;
}

unsigned interval_set_new_parts(const struct interval_set *set, struct interval part, struct interval parts[static INTERVAL_SET_MOST + 1])
{
    struct interval_set copy = *set;
    return interval_set_add(&copy, part, parts);
}
