/*
 * Memory of graphs: an address for each allocation node, memory behind it from launch to free, and the attributes of a device's
 * graph memory. The pages behind a graph are its own: nothing smaller than SPACE_UNIT is shared.
 *
 * In: what cuda/graph does to its nodes, and cuGraph-related calls of memory. Out: addresses that stay the same over launches. What
 * is behind them comes from a pool of the driver's own that keeps what it has until cuDeviceGraphMemTrim. Invariant: an address is
 * backed at most once at a time.
 */
#include <stdlib.h>

#include "../context.h"
#include "../entry.h"
#include "../memory.h"
#include "pool.h"

struct graph_memory {
    uint64_t backing;           /* where in the pool; 0: nothing */
    bool forgotten;             /* its node is gone; it ends with its memory */
};

static uint64_t in_units(uint64_t size)
{
    return (size + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
}

static CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    const CUmemPoolProps *pool = &params->poolProps;
    if (params->bytesize == 0 || pool->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(pool->location.id) ||
        (params->accessDescs == NULL && params->accessDescCount > 0))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < params->accessDescCount; i++) {
        const CUmemLocation *at = &params->accessDescs[i].location;
        if (at->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_valid(at->id))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return params->bytesize > UINT64_MAX / 2 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static struct allocation *find(CUdeviceptr pointer)
{
    struct allocation *found = allocation_at(pointer);
    return found != NULL && found->kind == ALLOCATION_GRAPH ? found : NULL;
}

static bool reuse(CUDA_MEM_ALLOC_NODE_PARAMS *params, const CUdeviceptr *again, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct allocation *found = find(again[i]);
        if (found == NULL || found->device != params->poolProps.location.id || in_units(found->span.size) < in_units(params->bytesize))
            continue;
        params->dptr = again[i];
        return true;
    }
    return false;
}

static CUresult reserve(CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct graph_memory *memory = calloc(1, sizeof *memory);
    uint64_t size = in_units(params->bytesize), start = memory == NULL ? 0 : space_take(ZONE_HIGH, size, SPACE_UNIT);
    struct allocation *made = start == 0 ? NULL : allocation_make(ALLOCATION_GRAPH, start, params->bytesize);
    if (made == NULL) {
        if (start != 0)
            space_give(start, size);
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->device = params->poolProps.location.id;
    made->owner = memory;
    params->dptr = start;
    return CUDA_SUCCESS;
}

CUresult graph_memory_reserve(CUDA_MEM_ALLOC_NODE_PARAMS *params, const CUdeviceptr *again, size_t count, bool *is_new)
{
    CUresult result = params == NULL ? CUDA_ERROR_INVALID_VALUE : check(params);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    *is_new = !reuse(params, again, count);
    if (*is_new)
        result = reserve(params);
    memory_unlock();
    return result;
}

static CUresult back(struct allocation *found, struct stream *stream)
{
    struct graph_memory *memory = found->owner;
    struct pool *pool = pool_of_graphs(found->device);
    if (memory->backing != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = pool == NULL ? NULL : pool_take(pool, in_units(found->span.size), stream, &memory->backing);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    found->physical = physical;
    found->content = (char *)physical_content(physical) + (memory->backing - physical->span.start);
    return CUDA_SUCCESS;
}

static void drop(struct allocation *found)
{
    space_give(found->span.start, in_units(found->span.size));
    free(found->owner);
    allocation_drop(found);
}

/* `stream` NULL: everything is done with it. */
CUresult graph_memory_free_in(struct allocation *found, struct stream *stream)
{
    struct graph_memory *memory = found->owner;
    if (memory->backing == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pool_give(pool_of_graphs(found->device), memory->backing, in_units(found->span.size), stream);
    memory->backing = 0;
    found->physical = NULL;
    found->content = NULL;
    if (memory->forgotten)
        drop(found);
    return CUDA_SUCCESS;
}

CUresult graph_memory_free_now(struct allocation *found)
{
    return graph_memory_free_in(found, NULL);
}

CUresult graph_memory_back(CUdeviceptr pointer, struct stream *stream)
{
    memory_lock();
    struct allocation *found = find(pointer);
    CUresult result = found == NULL ? CUDA_ERROR_INVALID_VALUE : back(found, stream);
    memory_unlock();
    return result;
}

CUresult graph_memory_unback(CUdeviceptr pointer, struct stream *stream)
{
    memory_lock();
    struct allocation *found = find(pointer);
    CUresult result = found == NULL ? CUDA_ERROR_INVALID_VALUE : graph_memory_free_in(found, stream);
    memory_unlock();
    return result;
}

bool graph_memory_is_backed(CUdeviceptr pointer)
{
    memory_lock();
    const struct allocation *found = find(pointer);
    bool backed = found != NULL && ((const struct graph_memory *)found->owner)->backing != 0;
    memory_unlock();
    return backed;
}

void graph_memory_launched(struct stream *stream)
{
    memory_lock();
    for (int device = 0; device_valid(device); device++) {
        struct pool *pool = pool_of_graphs(device);
        if (pool != NULL)
            pool_freed_later(pool, stream);
    }
    memory_unlock();
}

bool graph_memory_is(CUdeviceptr pointer)
{
    memory_lock();
    bool found = find(pointer) != NULL;
    memory_unlock();
    return found;
}

void graph_memory_forget(CUdeviceptr pointer)
{
    memory_lock();
    struct allocation *found = find(pointer);
    struct graph_memory *memory = found == NULL ? NULL : found->owner;
    if (memory != NULL && memory->backing == 0)
        drop(found);
    else if (memory != NULL)
        memory->forgotten = true;
    memory_unlock();
}

static CUresult get(const struct pool *pool, CUgraphMem_attribute attribute, uint64_t *value)
{
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        *value = pool->used;
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        *value = pool->used_high;
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *value = pool->arena.reserved;
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *value = pool->arena.reserved_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Only high watermarks can be set, and only to zero: they start again. */
static CUresult set(struct pool *pool, CUgraphMem_attribute attribute, uint64_t *value)
{
    if (*value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        pool->used_high = pool->used;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        pool->arena.reserved_high = pool->arena.reserved;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    const struct pool *pool = pool_of_graphs(device);
    CUresult result = value == NULL || pool == NULL ? CUDA_ERROR_INVALID_VALUE : get(pool, attribute, value);
    memory_unlock();
    return result;
}

ENTRY(cuDeviceSetGraphMemAttribute)(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    struct pool *pool = pool_of_graphs(device);
    CUresult result = value == NULL || pool == NULL ? CUDA_ERROR_INVALID_VALUE : set(pool, attribute, value);
    memory_unlock();
    return result;
}

ENTRY(cuDeviceGraphMemTrim)(CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    struct pool *pool = pool_of_graphs(device);
    if (pool != NULL)
        pool_trim(pool, 0);
    memory_unlock();
    return CUDA_SUCCESS;
}
