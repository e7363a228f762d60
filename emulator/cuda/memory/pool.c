/* See pool.h. */
#include "pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../context.h"
#include "../memory.h"

static struct pool *pools;
static struct pool *defaults[MAX_GPUS], *graphs[MAX_GPUS], *host_default;
/* Whether a synchronisation could give something back; saves those who wait the lock. */
static atomic_bool worth_looking;

static uint64_t rounded(uint64_t size)
{
    return (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

struct pool *pool_make(const CUmemPoolProps *properties)
{
    struct pool *pool = malloc(sizeof *pool);
    if (pool == NULL)
        return NULL;
    bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    *pool = (struct pool){.properties = *properties, .reuse = {1, 1, 1}, .next = pools};
    pool->device = on_device ? properties->location.id : HOST;
    pool->arena.request = (struct physical_request){.device = pool->device, .size = POOL_STEP, .exposed = !on_device};
    pool->arena.most = properties->maxSize;
    pool->waiting_end = &pool->waiting;
    if (on_device)
        pool->access[pool->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return pools = pool;
}

CUmemoryPool pool_handle(struct pool *pool)
{
    return (CUmemoryPool)(void *)pool;
}

struct pool *pool_find(CUmemoryPool handle)
{
    for (struct pool *at = pools; at != NULL; at = at->next) {
        if (pool_handle(at) == handle)
            return at->destroyed ? NULL : at;
    }
    return NULL;
}

static void unlink_freed(struct pool *pool, struct freed **at)
{
    struct freed *freed = *at;
    *at = freed->next;
    if (freed->next == NULL)
        pool->waiting_end = at;
    free(freed);
}

/* Blocks whose streams have passed the free are free for all streams. */
static void settle(struct pool *pool)
{
    for (struct freed **at = &pool->waiting; *at != NULL;) {
        struct freed *freed = *at;
        if (!stream_point_passed(&freed->point)) {
            at = &freed->next;
            continue;
        }
        arena_give(&pool->arena, freed->start, freed->size);
        unlink_freed(pool, at);
    }
}

/* The front of a waiting block; what is left of it goes on waiting. */
static void carve(struct pool *pool, struct freed **at, uint64_t size, uint64_t *start)
{
    struct freed *freed = *at;
    *start = freed->start;
    freed->start += size;
    freed->size -= size;
    if (freed->size == 0)
        unlink_freed(pool, at);
}

static bool reuse_own(struct pool *pool, uint64_t size, const struct stream *stream, uint64_t *start)
{
    for (struct freed **at = &pool->waiting; *at != NULL; at = &(*at)->next) {
        if ((*at)->point.stream != stream || (*at)->size < size)
            continue;
        carve(pool, at, size, start);
        return true;
    }
    return false;
}

static bool reuse_followed(struct pool *pool, uint64_t size, struct stream *stream, uint64_t *start)
{
    for (struct freed **at = &pool->waiting; pool->reuse[2] && *at != NULL; at = &(*at)->next) {
        if ((*at)->size < size)
            continue;
        stream_follow(stream, &(*at)->point);
        carve(pool, at, size, start);
        return true;
    }
    return false;
}

/* Nothing fits alone: everything that waits is waited for, and may fit together. */
static void follow_all(struct pool *pool, struct stream *stream)
{
    while (pool->waiting != NULL) {
        struct freed *freed = pool->waiting;
        stream_follow(stream, &freed->point);
        arena_give(&pool->arena, freed->start, freed->size);
        unlink_freed(pool, &pool->waiting);
    }
}

/*
 * The pages behind a graph need not lie side by side, and change with every launch: pieces that are too small alone serve together, those
 * among them that the stream itself freed. Here they are given back and taken again as one.
 */
static bool gather(struct pool *pool, uint64_t size, const struct stream *stream, uint64_t *start)
{
    uint64_t before = pool->arena.reserved;
    for (struct freed **at = &pool->waiting; *at != NULL;) {
        struct freed *freed = *at;
        if (freed->point.stream != stream) {
            at = &freed->next;
            continue;
        }
        arena_give(&pool->arena, freed->start, freed->size);
        unlink_freed(pool, at);
    }
    arena_trim(&pool->arena, 0);
    uint64_t gathered = before - pool->arena.reserved;
    return ((gathered > size && arena_grow(&pool->arena, gathered)) || arena_grow(&pool->arena, size)) &&
           arena_take_free(&pool->arena, size, start) != NULL;
}

static bool find_memory(struct pool *pool, uint64_t size, struct stream *stream, uint64_t *start)
{
    if (reuse_own(pool, size, stream, start))
        return true;
    if (pool->reuse[1])
        settle(pool);
    if (arena_take_free(&pool->arena, size, start) != NULL || (pool->of_graphs && gather(pool, size, stream, start)) ||
        reuse_followed(pool, size, stream, start) || arena_take(&pool->arena, size, start) != NULL)
        return true;
    if (!pool->reuse[2] || pool->waiting == NULL)
        return false;
    follow_all(pool, stream);
    return arena_take(&pool->arena, size, start) != NULL;
}

struct physical *pool_take(struct pool *pool, uint64_t size, struct stream *stream, uint64_t *start)
{
    if (size > UINT64_MAX / 2 || !find_memory(pool, rounded(size), stream, start))
        return NULL;
    pool->live++;
    pool->used += rounded(size);
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    atomic_store_explicit(&worth_looking, true, memory_order_relaxed);
    return arena_chunk(&pool->arena, *start)->physical;
}

static void unmake(struct pool *pool)
{
    for (struct pool **at = &pools; *at != NULL; at = &(*at)->next) {
        if (*at == pool) {
            *at = pool->next;
            break;
        }
    }
    arena_trim(&pool->arena, 0);
    free(pool);
}

static void unmake_if_over(struct pool *pool)
{
    if (!pool->destroyed || pool->live > 0)
        return;
    settle(pool);
    if (pool->waiting == NULL)
        unmake(pool);
}

static bool wait_for(struct pool *pool, uint64_t start, uint64_t size, struct stream *stream)
{
    struct freed *freed = malloc(sizeof *freed);
    if (freed == NULL)
        return false;
    *freed = (struct freed){.start = start, .size = size, .point = stream_point(stream)};
    *pool->waiting_end = freed;
    pool->waiting_end = &freed->next;
    return true;
}

void pool_give(struct pool *pool, uint64_t start, uint64_t size, struct stream *stream)
{
    size = rounded(size);
    pool->live--;
    pool->used -= size;
    if (stream == NULL || !wait_for(pool, start, size, stream))
        arena_give(&pool->arena, start, size);
    atomic_store_explicit(&worth_looking, true, memory_order_relaxed);
    unmake_if_over(pool);
}

void pool_trim(struct pool *pool, uint64_t keep)
{
    settle(pool);
    arena_trim(&pool->arena, keep);
}

void pool_freed_later(struct pool *pool, struct stream *stream)
{
    for (struct freed *at = pool->waiting; at != NULL; at = at->next) {
        if (at->point.stream == stream)
            at->point = stream_point(stream);
    }
}

void pool_set_threshold(struct pool *pool, uint64_t threshold)
{
    pool->threshold = threshold;
    atomic_store_explicit(&worth_looking, true, memory_order_relaxed);
}

void pool_destroy(struct pool *pool)
{
    pool->destroyed = true;
    unmake_if_over(pool);
}

void pool_free_in(struct allocation *allocation, struct stream *stream)
{
    pool_give(allocation->owner, allocation->span.start, allocation->span.size, stream);
    allocation_drop(allocation);
}

void pool_free_now(struct allocation *allocation)
{
    pool_free_in(allocation, NULL);
}

static struct pool *permanent(struct pool **place, const CUmemPoolProps *properties, uint64_t threshold)
{
    if (*place == NULL && (*place = pool_make(properties)) != NULL) {
        (*place)->permanent = true;
        (*place)->threshold = threshold;
    }
    return *place;
}

static CUmemPoolProps plain(CUmemLocationType type, int id)
{
    return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {type, id}};
}

struct pool *pool_default(int device)
{
    CUmemPoolProps properties = plain(CU_MEM_LOCATION_TYPE_DEVICE, device);
    return permanent(&defaults[device], &properties, 0);
}

struct pool *pool_default_host(void)
{
    CUmemPoolProps properties = plain(CU_MEM_LOCATION_TYPE_HOST, 0);
    return permanent(&host_default, &properties, 0);
}

struct pool *pool_of_graphs(int device)
{
    CUmemPoolProps properties = plain(CU_MEM_LOCATION_TYPE_DEVICE, device);
    struct pool *pool = permanent(&graphs[device], &properties, UINT64_MAX);
    if (pool != NULL)
        pool->of_graphs = true;
    return pool;
}

/* True: there will be something to do at a later synchronisation. */
static bool release(struct pool *pool)
{
    settle(pool);
    arena_shrink(&pool->arena, pool->threshold);
    return pool->waiting != NULL;
}

void memory_synchronised(struct context *context)
{
    int device = context_device(context);
    bool more = false;
    if (!atomic_load_explicit(&worth_looking, memory_order_relaxed))
        return;
    memory_lock();
    for (struct pool *next, *at = pools; at != NULL; at = next) {
        next = at->next;
        if (at->device == device || at->device == HOST)
            more |= release(at);
        else
            more = true;
        unmake_if_over(at);
    }
    atomic_store_explicit(&worth_looking, more, memory_order_relaxed);
    memory_unlock();
}
