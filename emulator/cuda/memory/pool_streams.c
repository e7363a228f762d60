/*
 * Entry points of stream-ordered allocation: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync.
 *
 * In: sizes and streams. Out: pointers, good for work that is queued behind the call. In a capture the call becomes a node of the
 * graph, whose memory is the graph's. Invariant: no call here waits for the GPU.
 */
#include "../capture.h"
#include "../context.h"
#include "../entry.h"
#include "../memory.h"
#include "failure.h"
#include "foreign.h"
#include "pool_current.h"

static CUresult allocate_captured(CUdeviceptr *pointer, uint64_t bytes, const CUmemPoolProps *properties, struct stream *stream)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = *properties, .bytesize = bytes};
    params.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CUresult result = capture_memory_alloc(stream, &params);
    if (result == CUDA_SUCCESS)
        *pointer = params.dptr;
    return result;
}

static CUresult allocate(struct pool *pool, uint64_t bytes, struct stream *stream, CUdeviceptr *pointer)
{
    uint64_t start;
    struct physical *physical = pool_take(pool, bytes, stream, &start);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *made = allocation_make(ALLOCATION_POOLED, start, bytes);
    if (made == NULL) {
        pool_give(pool, start, bytes, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->device = pool->device;
    made->physical = physical;
    made->content = (char *)physical_content(physical) + (start - physical->span.start);
    made->owner = pool;
    *pointer = start;
    return CUDA_SUCCESS;
}

/* `handle` NULL: the pool that is current for the stream's device. */
static struct pool *choose(CUmemoryPool handle, bool given, const struct stream *stream)
{
    return given ? pool_find(handle) : pool_current(context_device(stream_context(stream)));
}

struct request {
    const char *function;
    CUdeviceptr *pointer;
    uint64_t bytes;
    CUmemoryPool pool;
    bool given;                 /* the pool was */
    CUstream stream;
    bool per_thread;
};

static CUresult allocate_async(const struct request *request)
{
    struct stream *stream;
    CUmemPoolProps properties;
    CUresult result = stream_of(request->stream, request->per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (request->pointer == NULL || request->bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (failure_due(request->function))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool captured = capture_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE;
    memory_lock();
    struct pool *pool = choose(request->pool, request->given, stream);
    if (pool == NULL || pool->imported)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (captured)
        properties = pool->properties;
    else
        result = allocate(pool, request->bytes, stream, request->pointer);
    memory_unlock();
    return captured && result == CUDA_SUCCESS ? allocate_captured(request->pointer, request->bytes, &properties, stream) : result;
}

ENTRY(cuMemAllocAsync)(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate_async(&(struct request){"cuMemAllocAsync", pointer, bytes, NULL, false, stream, false});
}

ENTRY(cuMemAllocAsync_ptsz)(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return allocate_async(&(struct request){"cuMemAllocAsync", pointer, bytes, NULL, false, stream, true});
}

ENTRY(cuMemAllocFromPoolAsync)(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_async(&(struct request){"cuMemAllocFromPoolAsync", pointer, bytes, pool, true, stream, false});
}

ENTRY(cuMemAllocFromPoolAsync_ptsz)(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return allocate_async(&(struct request){"cuMemAllocFromPoolAsync", pointer, bytes, pool, true, stream, true});
}

static CUresult release(struct allocation *found, struct stream *stream)
{
    switch (found->kind) {
    case ALLOCATION_POOLED:
        pool_free_in(found, stream);
        return CUDA_SUCCESS;
    case ALLOCATION_GRAPH:
        return graph_memory_free_in(found, stream);
    case ALLOCATION_IMPORTED:
        foreign_release(found);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* A captured free can only be of memory that belongs to a graph. */
static CUresult free_captured(CUdeviceptr pointer, struct stream *stream)
{
    return graph_memory_is(pointer) ? capture_memory_free(stream, pointer) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult free_async(CUdeviceptr pointer, CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (capture_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE)
        return free_captured(pointer, stream);
    memory_lock();
    struct allocation *found = allocation_at(pointer);
    result = found == NULL ? CUDA_ERROR_INVALID_VALUE : release(found, stream);
    memory_unlock();
    return result;
}

ENTRY(cuMemFreeAsync)(CUdeviceptr pointer, CUstream stream)
{
    return free_async(pointer, stream, false);
}

ENTRY(cuMemFreeAsync_ptsz)(CUdeviceptr pointer, CUstream stream)
{
    return free_async(pointer, stream, true);
}
