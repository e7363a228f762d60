/* See ranges.h. */
#include "ranges.h"

#include <stdlib.h>

static void drop(struct ranges *ranges, struct span *span)
{
    spans_remove(&ranges->free, span);
    free(span);
}

void ranges_give(struct ranges *ranges, uint64_t start, uint64_t size, struct bounds within)
{
    struct span *before = spans_before(&ranges->free, start), *after = spans_at_or_after(&ranges->free, start);
    bool joins_before = before != NULL && before->start + before->size == start && before->start >= within.low;
    bool joins_after = after != NULL && after->start == start + size && after->start < within.high;
    if (joins_before) {
        uint64_t more = joins_after ? after->size : 0;
        if (joins_after)
            drop(ranges, after);
        spans_resize(&ranges->free, before, before->start, before->size + size + more);
    } else if (joins_after) {
        spans_resize(&ranges->free, after, start, after->size + size);
    } else {
        struct span *fresh = malloc(sizeof *fresh);
        if (fresh == NULL)
            return;
        *fresh = (struct span){.start = start, .size = size};
        spans_insert(&ranges->free, fresh);
    }
}

/* Cuts [start, start + size) out of a free range; what is left on both sides stays free. */
static bool cut(struct ranges *ranges, struct span *from, uint64_t start, uint64_t size)
{
    uint64_t before = start - from->start, after = from->start + from->size - (start + size);
    if (before != 0 && after != 0) {
        struct span *rest = malloc(sizeof *rest);
        if (rest == NULL)
            return false;
        *rest = (struct span){.start = start + size, .size = after};
        spans_resize(&ranges->free, from, from->start, before);
        spans_insert(&ranges->free, rest);
    } else if (before != 0) {
        spans_resize(&ranges->free, from, from->start, before);
    } else if (after != 0) {
        spans_resize(&ranges->free, from, start + size, after);
    } else {
        drop(ranges, from);
    }
    return true;
}

bool ranges_take(struct ranges *ranges, uint64_t size, uint64_t alignment, uint64_t *start)
{
    struct span *found = spans_with_room(&ranges->free, size, alignment, start);
    return found != NULL && cut(ranges, found, *start, size);
}

bool ranges_take_at(struct ranges *ranges, uint64_t start, uint64_t size)
{
    struct span *found = spans_holding(&ranges->free, start);
    return found != NULL && found->start + found->size - start >= size && cut(ranges, found, start, size);
}
