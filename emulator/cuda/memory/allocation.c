/* See allocation.h. */
#include "allocation.h"

#include <stdlib.h>

static struct spans records;
static uint64_t last_id;

struct allocation *allocation_make(enum allocation_kind kind, uint64_t start, uint64_t size)
{
    struct allocation *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (struct allocation){.span = {.start = start, .size = size}, .kind = kind, .device = HOST, .id = ++last_id};
    spans_insert(&records, &made->span);
    return made;
}

void allocation_drop(struct allocation *allocation)
{
    spans_remove(&records, &allocation->span);
    free(allocation);
}

struct allocation *allocation_holding(uint64_t address)
{
    return SPAN_OWNER(struct allocation, spans_holding(&records, address));
}

struct allocation *allocation_at(uint64_t address)
{
    struct allocation *found = allocation_holding(address);
    return found != NULL && found->span.start == address ? found : NULL;
}

bool allocation_overlaps(uint64_t start, uint64_t size)
{
    struct span *after = spans_at_or_after(&records, start);
    return spans_holding(&records, start) != NULL || (after != NULL && after->start - start < size);
}

void allocation_each(void (*visit)(struct allocation *, void *), void *with)
{
    struct span *next;
    for (struct span *at = spans_at_or_after(&records, 0); at != NULL; at = next) {
        next = spans_at_or_after(&records, at->start + 1);
        visit(SPAN_OWNER(struct allocation, at), with);
    }
}

static bool in_record(const struct allocation *found, uint64_t address, uint64_t written, struct stretch *out)
{
    uint64_t offset = address - found->span.start;
    if (found->content == NULL)
        return false;
    *out = (struct stretch){found->content + offset, found->span.size - offset, found->device == HOST, found->device};
    written = written < out->size ? written : out->size;
    if (written > 0 && found->physical != NULL)
        physical_touch(found->physical, (uint64_t)(out->bytes - (char *)physical_content(found->physical)), written);
    return true;
}

bool allocation_stretch(uint64_t address, bool pageable, uint64_t written, struct stretch *out)
{
    struct allocation *found = allocation_holding(address);
    if (found != NULL)
        return in_record(found, address, written, out);
    if (!pageable || space_holds(address))
        return false;
    struct span *after = spans_at_or_after(&records, address);
    uint64_t size = after == NULL ? UINT64_MAX - address : after->start - address;
    *out = (struct stretch){(char *)(uintptr_t)address, size, true, HOST};
    return true;
}

static bool find_piece(uint64_t address, bool pageable, bool planned, struct stretch *out)
{
    const struct allocation *found = allocation_holding(address);
    if (!planned || found == NULL || found->kind != ALLOCATION_GRAPH)
        return allocation_stretch(address, pageable, 0, out);
    *out = (struct stretch){NULL, found->span.size - (address - found->span.start), false, found->device};
    return true;
}

/* One record holds all of it, unless it is virtual memory, where neighbours are mapped piece by piece, or the application's own. */
static bool may_continue(uint64_t address)
{
    const struct allocation *found = allocation_holding(address);
    return found == NULL || found->kind == ALLOCATION_MAPPING || found->kind == ALLOCATION_REGISTERED;
}

bool allocation_covers(uint64_t address, uint64_t size, bool pageable, bool planned, struct stretch *first)
{
    bool there = find_piece(address, pageable, planned, first);
    struct stretch at = *first;
    while (there && at.size < size) {
        address += at.size;
        size -= at.size;
        there = may_continue(address) && find_piece(address, pageable, planned, &at);
    }
    return there;
}
