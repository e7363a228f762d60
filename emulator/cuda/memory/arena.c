/* See arena.h. */
#include "arena.h"

#include <stdlib.h>

static uint64_t rounded(uint64_t size)
{
    return (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static struct bounds bounds_of(const struct chunk *chunk)
{
    return (struct bounds){chunk->span.start, chunk->span.start + chunk->span.size};
}

struct chunk *arena_chunk(const struct arena *arena, uint64_t address)
{
    return SPAN_OWNER(struct chunk, spans_holding(&arena->chunks, address));
}

static bool add_chunk(struct arena *arena, uint64_t size)
{
    struct physical_request request = arena->request;
    request.size = size;
    if (arena->most != 0 && (size > arena->most || arena->reserved > arena->most - size))
        return false;
    struct chunk *chunk = malloc(sizeof *chunk);
    struct physical *physical = chunk == NULL ? NULL : physical_make(&request);
    if (physical == NULL) {
        free(chunk);
        return false;
    }
    *chunk = (struct chunk){.span = {.start = physical->span.start, .size = physical->span.size}, .physical = physical};
    spans_insert(&arena->chunks, &chunk->span);
    ranges_give(&arena->free, chunk->span.start, chunk->span.size, bounds_of(chunk));
    arena->reserved += chunk->span.size;
    if (arena->reserved > arena->reserved_high)
        arena->reserved_high = arena->reserved;
    return true;
}

bool arena_grow(struct arena *arena, uint64_t size)
{
    uint64_t step = arena->request.size, steps = (size + step - 1) / step * step;
    if (add_chunk(arena, steps))
        return true;
    uint64_t least = (size + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
    return least < steps && add_chunk(arena, least);
}

struct chunk *arena_take_free(struct arena *arena, uint64_t size, uint64_t *at)
{
    size = rounded(size);
    if (!ranges_take(&arena->free, size, ARENA_ALIGNMENT, at))
        return NULL;
    struct chunk *chunk = arena_chunk(arena, *at);
    chunk->used += size;
    return chunk;
}

struct chunk *arena_take(struct arena *arena, uint64_t size, uint64_t *at)
{
    if (size > UINT64_MAX / 2)
        return NULL;
    struct chunk *chunk = arena_take_free(arena, size, at);
    if (chunk != NULL)
        return chunk;
    if (!arena_grow(arena, rounded(size))) {
        uint64_t before = arena->reserved;
        arena_trim(arena, 0); /* what lies idle in pieces that are too small may make room for one that is not */
        if (arena->reserved == before || !arena_grow(arena, rounded(size)))
            return NULL;
    }
    return arena_take_free(arena, size, at);
}

struct chunk *arena_give(struct arena *arena, uint64_t address, uint64_t size)
{
    struct chunk *chunk = arena_chunk(arena, address);
    size = rounded(size);
    chunk->used -= size;
    ranges_give(&arena->free, address, size, bounds_of(chunk));
    return chunk->used == 0 ? chunk : NULL;
}

void arena_drop(struct arena *arena, struct chunk *chunk)
{
    ranges_take_at(&arena->free, chunk->span.start, chunk->span.size);
    spans_remove(&arena->chunks, &chunk->span);
    arena->reserved -= chunk->span.size;
    physical_unmake(chunk->physical);
    free(chunk);
}

/* The first empty chunk from an address on. */
static struct chunk *next_empty(const struct arena *arena, uint64_t from)
{
    struct span *at = spans_at_or_after(&arena->chunks, from);
    while (at != NULL && SPAN_OWNER(struct chunk, at)->used != 0)
        at = spans_at_or_after(&arena->chunks, at->start + 1);
    return SPAN_OWNER(struct chunk, at);
}

void arena_trim(struct arena *arena, uint64_t keep)
{
    struct chunk *next;
    for (struct chunk *at = next_empty(arena, 0); at != NULL; at = next) {
        next = next_empty(arena, at->span.start + 1);
        if (arena->reserved >= keep && arena->reserved - keep >= at->span.size)
            arena_drop(arena, at);
    }
}

void arena_shrink(struct arena *arena, uint64_t threshold)
{
    struct chunk *empty;
    while (arena->reserved > threshold && (empty = next_empty(arena, 0)) != NULL)
        arena_drop(arena, empty);
}
