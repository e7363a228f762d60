/* See linear.h. */
#include "linear.h"

#include "../../shared/layout.h"

static struct arena slabs[MAX_GPUS][2];

static struct arena *slabs_of(int device, enum space_zone zone)
{
    struct arena *arena = &slabs[device][zone];
    arena->request = (struct physical_request){.device = device, .size = SPACE_UNIT, .zone = zone};
    return arena;
}

static struct allocation *make_small(enum allocation_kind kind, struct arena *arena, uint64_t size)
{
    uint64_t at;
    struct chunk *chunk = arena_take(arena, size, &at);
    if (chunk == NULL)
        return NULL;
    struct allocation *made = allocation_make(kind, at, size);
    if (made == NULL) {
        struct chunk *empty = arena_give(arena, at, size);
        if (empty != NULL)
            arena_drop(arena, empty);
        return NULL;
    }
    made->arena = arena;
    made->physical = chunk->physical;
    return made;
}

static struct allocation *make_large(enum allocation_kind kind, const struct physical_request *request)
{
    struct physical *physical = physical_make(request);
    if (physical == NULL)
        return NULL;
    struct allocation *made = allocation_make(kind, physical->span.start, request->size);
    if (made == NULL)
        physical_unmake(physical);
    else
        made->physical = physical;
    return made;
}

struct allocation *linear_make(enum allocation_kind kind, int device, enum space_zone zone, uint64_t size)
{
    bool managed = kind == ALLOCATION_MANAGED;
    struct physical_request request = {.device = device, .size = size, .zone = zone, .exposed = managed, .evictable = managed};
    struct allocation *made = size <= LINEAR_SMALL && !managed ? make_small(kind, slabs_of(device, zone), size) : make_large(kind, &request);
    if (made == NULL)
        return NULL;
    made->device = device;
    made->content = (char *)physical_content(made->physical) + (made->span.start - made->physical->span.start);
    return made;
}

void linear_release(struct allocation *allocation)
{
    if (allocation->arena == NULL) {
        physical_unmake(allocation->physical);
    } else {
        struct chunk *empty = arena_give(allocation->arena, allocation->span.start, allocation->span.size);
        if (empty != NULL)
            arena_drop(allocation->arena, empty);
    }
    allocation_drop(allocation);
}
