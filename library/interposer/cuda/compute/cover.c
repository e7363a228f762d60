/* See cover.h. */
#include "cover.h"

#include <string.h>

static void replace(struct cover *cover, unsigned first, unsigned end, struct interval with)
{
    unsigned tail = cover->count - end;
    memmove(&cover->intervals[first + 1], &cover->intervals[end], tail * sizeof cover->intervals[0]);
    cover->intervals[first] = with;
    cover->count = first + 1 + tail;
}

/* One place is kept free for what is inserted between two. */
static void make_room(struct cover *cover)
{
    if (cover->count < COVER_INTERVALS)
        return;
    memmove(&cover->intervals[0], &cover->intervals[1], (cover->count - 1) * sizeof cover->intervals[0]);
    cover->count--;
}

unsigned cover_add(struct cover *cover, struct interval added, struct interval parts[static COVER_INTERVALS + 1])
{
    unsigned found = 0;
    if (added.end <= added.start)
        return 0;
    make_room(cover);
    unsigned first = 0;
    while (first < cover->count && cover->intervals[first].end < added.start)
        first++;
    struct interval merged = added;
    uint64_t reached = added.start;
    unsigned next = first;
    for (; next < cover->count && cover->intervals[next].start <= added.end; next++) {
        struct interval old = cover->intervals[next];
        if (old.start > reached)
            parts[found++] = (struct interval){reached, old.start};
        reached = old.end > reached ? old.end : reached;
        merged.start = old.start < merged.start ? old.start : merged.start;
        merged.end = old.end > merged.end ? old.end : merged.end;
    }
    if (reached < added.end)
        parts[found++] = (struct interval){reached, added.end};
    replace(cover, first, next, merged);
    return found;
}
