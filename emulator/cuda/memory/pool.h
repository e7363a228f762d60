/*
 * Stream-ordered memory: pools.
 *
 * In: sizes, and the streams that memory is wanted in and given back in. Out: addresses. What was freed in a stream can be used
 * again in that stream at once, by all streams once the stream has passed the free, and by another stream before that if it is made to
 * follow. A pool grows in steps of POOL_STEP and gives whole chunks back when it is trimmed, or at a synchronisation where it holds
 * more than its release threshold. Graph memory is a pool of the driver's own for each device. Not here: what the application sees
 * (pool_calls.c, graph_memory.c). Under memory_lock(). Invariant: a block is in use, waiting for its stream, or free; `used` counts
 * the first kind alone.
 */
#ifndef VCUDA_EMULATOR_POOL_H
#define VCUDA_EMULATOR_POOL_H

#include "../../shared/layout.h"
#include "../stream.h"
#include "allocation.h"

#define POOL_STEP (UINT64_C(32) << 20)

struct freed {
    uint64_t start, size;
    struct stream_point point;
    struct freed *next;
};

struct pool {
    struct pool *next;
    CUmemPoolProps properties;
    int device;
    struct arena arena;
    struct freed *waiting;      /* oldest first */
    struct freed **waiting_end; /* where the next one goes */
    uint64_t live;              /* allocations that were not freed */
    uint64_t used, used_high, threshold;
    int32_t reuse[3];           /* FOLLOW_EVENT_DEPENDENCIES, ALLOW_OPPORTUNISTIC, ALLOW_INTERNAL_DEPENDENCIES */
    uint8_t access[MAX_GPUS];
    bool permanent;             /* a device's default, or its graph memory */
    bool of_graphs;             /* takes memory of the GPU before it lets one stream wait for another */
    bool imported;
    bool destroyed;             /* ends with its last allocation */
    bool shareable_made;
    uint64_t identity;          /* the same in every process that shares it; 0: never exported */
};

struct pool *pool_make(const CUmemPoolProps *properties);   /* NULL: no memory */
void pool_destroy(struct pool *pool);
struct pool *pool_find(CUmemoryPool handle);                /* NULL: no such pool */
CUmemoryPool pool_handle(struct pool *pool);

/* The piece of memory that the address lies in; NULL: out of memory. */
struct physical *pool_take(struct pool *pool, uint64_t size, struct stream *stream, uint64_t *start);
/* `stream` NULL: everything is done with it. */
void pool_give(struct pool *pool, uint64_t start, uint64_t size, struct stream *stream);
void pool_trim(struct pool *pool, uint64_t keep);

/* Obeyed at the next synchronisation. */
void pool_set_threshold(struct pool *pool, uint64_t threshold);
/* What was freed in the stream waits for what is queued there now as well. */
void pool_freed_later(struct pool *pool, struct stream *stream);
void pool_free_now(struct allocation *allocation);
void pool_free_in(struct allocation *allocation, struct stream *stream);

/* The pools of the driver's own. NULL: no memory. */
struct pool *pool_default(int device);
struct pool *pool_default_host(void);
struct pool *pool_of_graphs(int device);

CUresult graph_memory_free_now(struct allocation *allocation);
CUresult graph_memory_free_in(struct allocation *allocation, struct stream *stream);

#endif
