/* See foreign.h. */
#include "foreign.h"

#include <stdlib.h>

struct foreign {
    struct shared_name name;
    struct physical *physical;
    uint32_t allocations;
    struct foreign *next;
};

static struct foreign *all;

static bool same(const struct shared_name *a, const struct shared_name *b)
{
    return a->maker == b->maker && a->number == b->number;
}

static struct foreign *map(const struct shared_name *name)
{
    for (struct foreign *at = all; at != NULL; at = at->next) {
        if (same(&at->name, name))
            return at;
    }
    struct foreign *made = malloc(sizeof *made);
    struct physical *physical = made == NULL ? NULL : sharing_open_name(name);
    if (physical == NULL) {
        free(made);
        return NULL;
    }
    *made = (struct foreign){.name = *name, .physical = physical, .next = all};
    return all = made;
}

static void drop_unused(struct foreign *foreign)
{
    if (foreign->allocations > 0)
        return;
    for (struct foreign **at = &all; *at != NULL; at = &(*at)->next) {
        if (*at == foreign) {
            *at = foreign->next;
            break;
        }
    }
    physical_unmake(foreign->physical);
    free(foreign);
}

static struct allocation *make(enum allocation_kind kind, struct foreign *from, const struct foreign_place *place)
{
    uint64_t start = from->physical->span.start + place->offset;
    struct allocation *made = allocation_overlaps(start, place->size) ? NULL : allocation_make(kind, start, place->size);
    if (made == NULL)
        return NULL;
    made->device = from->physical->device;
    made->physical = from->physical;
    made->content = (char *)physical_content(from->physical) + place->offset;
    made->owner = from;
    from->allocations++;
    return made;
}

struct allocation *foreign_open(enum allocation_kind kind, const struct foreign_place *place)
{
    uint64_t end = place->offset + place->size;
    if (place->size == 0 || end < place->size || end > place->name.size)
        return NULL;
    struct foreign *from = map(&place->name);
    if (from == NULL)
        return NULL;
    struct allocation *found = allocation_at(from->physical->span.start + place->offset);
    if (found == NULL)
        found = make(kind, from, place);
    else if (found->span.size != place->size)
        found = NULL; /* freed and allocated again by its maker, which is not allowed while it is open */
    if (found == NULL)
        drop_unused(from);
    else
        found->flags++;
    return found;
}

void foreign_release(struct allocation *allocation)
{
    struct foreign *from = allocation->owner;
    if (--allocation->flags > 0)
        return;
    allocation_drop(allocation);
    from->allocations--;
    drop_unused(from);
}

bool foreign_place_of(const struct allocation *allocation, struct foreign_place *out)
{
    if (!sharing_by_name(allocation->physical, &out->name))
        return false;
    out->offset = allocation->span.start - allocation->physical->span.start;
    out->size = allocation->span.size;
    return true;
}
