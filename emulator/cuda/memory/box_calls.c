/*
 * Entry points of copies of boxes, from and to arrays, and between contexts, and of fills of rectangles; as those of copy_calls.c.
 *
 * In: arguments of the application. Out: an action of box.h, in a stream or in a capture. The functions with addresses of 32 bits have no entry.
 */
#include "../context.h"
#include "../entry.h"
#include "box.h"
#include "submit.h"

static CUresult submit_box(const CUDA_MEMCPY3D *copy, struct stream *stream, enum copy_route *route)
{
    struct graph_action action;
    *route = COPY_ON_DEVICE;
    if (copy->WidthInBytes == 0 || copy->Height == 0 || copy->Depth == 0)
        return CUDA_SUCCESS;
    CUresult result = box_copy_action(copy, submit_is_captured(stream), route, &action);
    return result == CUDA_SUCCESS ? submit_action(stream, &action) : result;
}

static CUresult box_async(const CUDA_MEMCPY3D *copy, CUstream handle, bool per_thread)
{
    struct stream *stream;
    enum copy_route route;
    CUresult result = copy == NULL ? CUDA_ERROR_INVALID_VALUE : stream_of(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? submit_box(copy, stream, &route) : result;
}

static CUresult box_now(const CUDA_MEMCPY3D *copy, bool per_thread)
{
    struct stream *stream;
    enum copy_route route;
    CUresult result = copy == NULL ? CUDA_ERROR_INVALID_VALUE : submit_stream_of_call(per_thread, &stream);
    if (result == CUDA_SUCCESS)
        result = submit_box(copy, stream, &route);
    return result == CUDA_SUCCESS && route == COPY_HOST_DEVICE ? stream_wait(stream) : result;
}

static CUDA_MEMCPY3D as_box(const CUDA_MEMCPY2D *copy)
{
    return (CUDA_MEMCPY3D){
        .srcXInBytes = copy->srcXInBytes, .srcY = copy->srcY, .srcMemoryType = copy->srcMemoryType, .srcHost = copy->srcHost,
        .srcDevice = copy->srcDevice, .srcArray = copy->srcArray, .srcPitch = copy->srcPitch,
        .dstXInBytes = copy->dstXInBytes, .dstY = copy->dstY, .dstMemoryType = copy->dstMemoryType, .dstHost = copy->dstHost,
        .dstDevice = copy->dstDevice, .dstArray = copy->dstArray, .dstPitch = copy->dstPitch,
        .WidthInBytes = copy->WidthInBytes, .Height = copy->Height, .Depth = 1,
    };
}

static CUresult rectangle_async(const CUDA_MEMCPY2D *copy, CUstream stream, bool per_thread)
{
    const CUDA_MEMCPY3D box = copy == NULL ? (CUDA_MEMCPY3D){.srcXInBytes = 0} : as_box(copy);
    return box_async(copy == NULL ? NULL : &box, stream, per_thread);
}

static CUresult rectangle_now(const CUDA_MEMCPY2D *copy, bool per_thread)
{
    const CUDA_MEMCPY3D box = copy == NULL ? (CUDA_MEMCPY3D){.srcXInBytes = 0} : as_box(copy);
    return box_now(copy == NULL ? NULL : &box, per_thread);
}

/* Each call in the flavour of the legacy default stream and in that of the thread's own. */
#define NOW_PAIR(symbol, type, function)                                                                                             \
    ENTRY(symbol)(const type *copy)                                                                                                  \
    {                                                                                                                                \
        return function(copy, false);                                                                                                \
    }                                                                                                                                \
    ENTRY(symbol##_ptds)(const type *copy)                                                                                           \
    {                                                                                                                                \
        return function(copy, true);                                                                                                 \
    }

#define ASYNC_PAIR(symbol, type, function)                                                                                           \
    ENTRY(symbol)(const type *copy, CUstream stream)                                                                                 \
    {                                                                                                                                \
        return function(copy, stream, false);                                                                                        \
    }                                                                                                                                \
    ENTRY(symbol##_ptsz)(const type *copy, CUstream stream)                                                                          \
    {                                                                                                                                \
        return function(copy, stream, true);                                                                                         \
    }

NOW_PAIR(cuMemcpy2D_v2, CUDA_MEMCPY2D, rectangle_now)
NOW_PAIR(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, rectangle_now)
NOW_PAIR(cuMemcpy3D_v2, CUDA_MEMCPY3D, box_now)
ASYNC_PAIR(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, rectangle_async)
ASYNC_PAIR(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, box_async)

/* ---- rows: of arrays, and between contexts ---- */

#define ROW(...) (&(CUDA_MEMCPY3D){__VA_ARGS__, .WidthInBytes = bytes, .Height = 1, .Depth = 1})
#define FROM_ARRAY .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = source, .srcXInBytes = source_offset
#define FROM_DEVICE .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = source
#define FROM_HOST .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = source
#define TO_ARRAY .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = target, .dstXInBytes = target_offset
#define TO_DEVICE .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = target
#define TO_HOST .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = target

#define ROW_NOW_PAIR(symbol, parameters, ...)                                                                                        \
    ENTRY(symbol) parameters                                                                                                         \
    {                                                                                                                                \
        return box_now(ROW(__VA_ARGS__), false);                                                                                     \
    }                                                                                                                                \
    ENTRY(symbol##_ptds) parameters                                                                                                  \
    {                                                                                                                                \
        return box_now(ROW(__VA_ARGS__), true);                                                                                      \
    }

#define ROW_ASYNC_PAIR(symbol, parameters, ...)                                                                                      \
    ENTRY(symbol) parameters                                                                                                         \
    {                                                                                                                                \
        return box_async(ROW(__VA_ARGS__), stream, false);                                                                           \
    }                                                                                                                                \
    ENTRY(symbol##_ptsz) parameters                                                                                                  \
    {                                                                                                                                \
        return box_async(ROW(__VA_ARGS__), stream, true);                                                                            \
    }

ROW_NOW_PAIR(cuMemcpyAtoA_v2, (CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t bytes), FROM_ARRAY, TO_ARRAY)
ROW_NOW_PAIR(cuMemcpyAtoD_v2, (CUdeviceptr target, CUarray source, size_t source_offset, size_t bytes), FROM_ARRAY, TO_DEVICE)
ROW_NOW_PAIR(cuMemcpyAtoH_v2, (void *target, CUarray source, size_t source_offset, size_t bytes), FROM_ARRAY, TO_HOST)
ROW_NOW_PAIR(cuMemcpyDtoA_v2, (CUarray target, size_t target_offset, CUdeviceptr source, size_t bytes), FROM_DEVICE, TO_ARRAY)
ROW_NOW_PAIR(cuMemcpyHtoA_v2, (CUarray target, size_t target_offset, const void *source, size_t bytes), FROM_HOST, TO_ARRAY)
ROW_ASYNC_PAIR(cuMemcpyAtoHAsync_v2, (void *target, CUarray source, size_t source_offset, size_t bytes, CUstream stream), FROM_ARRAY, TO_HOST)
ROW_ASYNC_PAIR(cuMemcpyHtoAAsync_v2, (CUarray target, size_t target_offset, const void *source, size_t bytes, CUstream stream), FROM_HOST, TO_ARRAY)

/* Which GPU an address lies on is known without its context. */
static CUresult check_contexts(CUcontext target, CUcontext source)
{
    struct context *context;
    CUresult result = target == NULL || source == NULL ? CUDA_ERROR_INVALID_CONTEXT : context_of(target, &context);
    return result == CUDA_SUCCESS ? context_of(source, &context) : result;
}

#define PEER_NOW(symbol, per_thread)                                                                                                 \
    ENTRY(symbol)(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context, size_t bytes)          \
    {                                                                                                                                \
        CUresult result = check_contexts(target_context, source_context);                                                            \
        return result == CUDA_SUCCESS ? box_now(ROW(FROM_DEVICE, TO_DEVICE), per_thread) : result;                                   \
    }

#define PEER_ASYNC(symbol, per_thread)                                                                                               \
    ENTRY(symbol)(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context, size_t bytes,          \
                  CUstream stream)                                                                                                   \
    {                                                                                                                                \
        CUresult result = check_contexts(target_context, source_context);                                                            \
        return result == CUDA_SUCCESS ? box_async(ROW(FROM_DEVICE, TO_DEVICE), stream, per_thread) : result;                         \
    }

PEER_NOW(cuMemcpyPeer, false)
PEER_NOW(cuMemcpyPeer_ptds, true)
PEER_ASYNC(cuMemcpyPeerAsync, false)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz, true)

/* ---- fills ---- */

static CUresult submit_fill(const CUDA_MEMSET_NODE_PARAMS *fill, struct stream *stream)
{
    struct graph_action action;
    if (fill->width == 0 || fill->height == 0)
        return CUDA_SUCCESS;
    CUresult result = box_fill_action(fill, submit_is_captured(stream), &action);
    return result == CUDA_SUCCESS ? submit_action(stream, &action) : result;
}

static CUresult fill_now(const CUDA_MEMSET_NODE_PARAMS *fill, bool per_thread)
{
    struct stream *stream;
    CUresult result = submit_stream_of_call(per_thread, &stream);
    return result == CUDA_SUCCESS ? submit_fill(fill, stream) : result;
}

static CUresult fill_async(const CUDA_MEMSET_NODE_PARAMS *fill, CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? submit_fill(fill, stream) : result;
}

#define RECTANGLE (&(CUDA_MEMSET_NODE_PARAMS){target, pitch, value, sizeof value, width, height})

#define FILL_PAIRS(bits, type)                                                                                                       \
    ENTRY(cuMemsetD2D##bits##_v2)(CUdeviceptr target, size_t pitch, type value, size_t width, size_t height)                         \
    {                                                                                                                                \
        return fill_now(RECTANGLE, false);                                                                                           \
    }                                                                                                                                \
    ENTRY(cuMemsetD2D##bits##_v2_ptds)(CUdeviceptr target, size_t pitch, type value, size_t width, size_t height)                    \
    {                                                                                                                                \
        return fill_now(RECTANGLE, true);                                                                                            \
    }                                                                                                                                \
    ENTRY(cuMemsetD2D##bits##Async)(CUdeviceptr target, size_t pitch, type value, size_t width, size_t height, CUstream stream)      \
    {                                                                                                                                \
        return fill_async(RECTANGLE, stream, false);                                                                                 \
    }                                                                                                                                \
    ENTRY(cuMemsetD2D##bits##Async_ptsz)(CUdeviceptr target, size_t pitch, type value, size_t width, size_t height, CUstream stream) \
    {                                                                                                                                \
        return fill_async(RECTANGLE, stream, true);                                                                                  \
    }

FILL_PAIRS(8, unsigned char)
FILL_PAIRS(16, unsigned short)
FILL_PAIRS(32, unsigned int)
