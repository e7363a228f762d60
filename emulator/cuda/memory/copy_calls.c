/*
 * Entry points of copies and fills in a row, synchronous and in streams, in the flavours of both default streams.
 *
 * In: arguments of the application. Out: bytes moved by the time the call returns, and their cost on the stream. Synchronous calls
 * return as the driver's do: a copy from or to the host when it is done, a copy on the device or a fill when it is queued. In a
 * capture a copy becomes a node.
 */
#include <stdint.h>
#include <string.h>

#include "../entry.h"
#include "copy.h"
#include "submit.h"

struct filling {
    uint64_t target, count;
    uint32_t value;
    unsigned size;
};

enum { MOVE_BOTH = SOURCE_PAGEABLE | TARGET_PAGEABLE };

static void perform_transfer(const void *payload, struct stream *stream)
{
    (void)stream;
    transfer_perform(payload);
}

static void perform_filling(const void *payload, struct stream *stream)
{
    const struct filling *filling = payload;
    (void)stream;
    memory_fill(filling->target, filling->value, filling->size, filling->count);
}

static CUresult submit_transfer(struct stream *stream, struct transfer transfer)
{
    struct graph_action action = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .work = {.kind = WORK_COPY}, .perform = perform_transfer};
    enum copy_route route;
    if (transfer.bytes == 0)
        return CUDA_SUCCESS;
    transfer.flags |= submit_is_captured(stream) ? PLANNED : 0;
    CUresult result = transfer_check(&transfer, &route);
    if (result != CUDA_SUCCESS)
        return result;
    action.work.cost_ns = copy_cost(route, transfer.bytes);
    memcpy(action.payload, &transfer, sizeof transfer);
    return submit_action(stream, &action);
}

static CUresult copy_async(const struct transfer *transfer, CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? submit_transfer(stream, *transfer) : result;
}

static CUresult copy_now(const struct transfer *transfer, bool per_thread)
{
    struct stream *stream;
    enum copy_route route;
    CUresult result = submit_stream_of_call(per_thread, &stream);
    if (result == CUDA_SUCCESS)
        result = submit_transfer(stream, *transfer);
    if (result != CUDA_SUCCESS || transfer->bytes == 0 || transfer_check(transfer, &route) != CUDA_SUCCESS)
        return result;
    return route == COPY_HOST_DEVICE ? stream_wait(stream) : CUDA_SUCCESS;
}

static CUresult submit_filling(struct stream *stream, const struct filling *filling)
{
    struct graph_action action = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .work = {.kind = WORK_COPY}, .perform = perform_filling};
    CUresult result = memory_fill_check(filling->target, filling->size, filling->count, submit_is_captured(stream));
    if (result != CUDA_SUCCESS || filling->count == 0)
        return result;
    action.work.cost_ns = copy_cost(MEMSET, filling->count * filling->size);
    memcpy(action.payload, filling, sizeof *filling);
    return submit_action(stream, &action);
}

static CUresult fill_async(const struct filling *filling, CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    return result == CUDA_SUCCESS ? submit_filling(stream, filling) : result;
}

static CUresult fill_now(const struct filling *filling, bool per_thread)
{
    struct stream *stream;
    CUresult result = submit_stream_of_call(per_thread, &stream);
    return result == CUDA_SUCCESS ? submit_filling(stream, filling) : result;
}

#define HOST_ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

/* Each call in the flavour of the legacy default stream and in that of the thread's own. */
#define COPY_PAIR(legacy, own, target_type, source_type, to, from, which)                                                            \
    ENTRY(legacy)(target_type target, source_type source, size_t bytes)                                                              \
    {                                                                                                                                \
        return copy_now(&(struct transfer){to, from, bytes, which}, false);                                                          \
    }                                                                                                                                \
    ENTRY(own)(target_type target, source_type source, size_t bytes)                                                                 \
    {                                                                                                                                \
        return copy_now(&(struct transfer){to, from, bytes, which}, true);                                                           \
    }

#define COPY_ASYNC_PAIR(legacy, own, target_type, source_type, to, from, which)                                                      \
    ENTRY(legacy)(target_type target, source_type source, size_t bytes, CUstream stream)                                             \
    {                                                                                                                                \
        return copy_async(&(struct transfer){to, from, bytes, which}, stream, false);                                                \
    }                                                                                                                                \
    ENTRY(own)(target_type target, source_type source, size_t bytes, CUstream stream)                                                \
    {                                                                                                                                \
        return copy_async(&(struct transfer){to, from, bytes, which}, stream, true);                                                 \
    }

COPY_PAIR(cuMemcpy, cuMemcpy_ptds, CUdeviceptr, CUdeviceptr, target, source, MOVE_BOTH)
COPY_PAIR(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, CUdeviceptr, const void *, target, HOST_ADDRESS(source), SOURCE_PAGEABLE)
COPY_PAIR(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, void *, CUdeviceptr, HOST_ADDRESS(target), source, TARGET_PAGEABLE)
COPY_PAIR(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, CUdeviceptr, CUdeviceptr, target, source, 0)
COPY_ASYNC_PAIR(cuMemcpyAsync, cuMemcpyAsync_ptsz, CUdeviceptr, CUdeviceptr, target, source, MOVE_BOTH)
COPY_ASYNC_PAIR(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, CUdeviceptr, const void *, target, HOST_ADDRESS(source), SOURCE_PAGEABLE)
COPY_ASYNC_PAIR(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, void *, CUdeviceptr, HOST_ADDRESS(target), source, TARGET_PAGEABLE)
COPY_ASYNC_PAIR(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, CUdeviceptr, CUdeviceptr, target, source, 0)

/* One after the other: their order is not the application's to know. What the attributes say about it makes no difference here. */
static CUresult copy_batch(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count, CUstream stream, bool per_thread)
{
    CUresult result = targets == NULL || sources == NULL || sizes == NULL || count == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        result = per_thread && stream == NULL ? result : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = copy_async(&(struct transfer){targets[i], sources[i], sizes[i], MOVE_BOTH}, stream, per_thread);
    return result;
}

#define COPY_BATCH(symbol, per_thread)                                                                                               \
    ENTRY(symbol)(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,           \
                  size_t *attribute_indices, size_t attribute_count, size_t *failed, CUstream stream)                                \
    {                                                                                                                                \
        (void)attributes, (void)attribute_indices, (void)attribute_count;                                                            \
        if (failed != NULL)                                                                                                          \
            *failed = SIZE_MAX;                                                                                                      \
        return copy_batch(targets, sources, sizes, count, stream, per_thread);                                                       \
    }

#define COPY_BATCH_V2(symbol, per_thread)                                                                                            \
    ENTRY(symbol)(CUdeviceptr *targets, CUdeviceptr *sources, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,           \
                  size_t *attribute_indices, size_t attribute_count, CUstream stream)                                                \
    {                                                                                                                                \
        (void)attributes, (void)attribute_indices, (void)attribute_count;                                                            \
        return copy_batch(targets, sources, sizes, count, stream, per_thread);                                                       \
    }

COPY_BATCH(cuMemcpyBatchAsync, false)
COPY_BATCH(cuMemcpyBatchAsync_ptsz, true)
COPY_BATCH_V2(cuMemcpyBatchAsync_v2, false)
COPY_BATCH_V2(cuMemcpyBatchAsync_v2_ptsz, true)

#define COPY_WITH_ATTRIBUTES(symbol, per_thread)                                                                                     \
    ENTRY(symbol)(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUmemcpyAttributes *attributes, CUstream stream)             \
    {                                                                                                                                \
        (void)attributes;                                                                                                            \
        return copy_async(&(struct transfer){target, source, bytes, MOVE_BOTH}, stream, per_thread);                                 \
    }

COPY_WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync, false)
COPY_WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync_ptsz, true)

#define FILL_PAIR(legacy, own, type, size)                                                                                           \
    ENTRY(legacy)(CUdeviceptr target, type value, size_t count)                                                                      \
    {                                                                                                                                \
        return fill_now(&(struct filling){target, count, value, size}, false);                                                       \
    }                                                                                                                                \
    ENTRY(own)(CUdeviceptr target, type value, size_t count)                                                                         \
    {                                                                                                                                \
        return fill_now(&(struct filling){target, count, value, size}, true);                                                        \
    }

#define FILL_ASYNC_PAIR(legacy, own, type, size)                                                                                     \
    ENTRY(legacy)(CUdeviceptr target, type value, size_t count, CUstream stream)                                                     \
    {                                                                                                                                \
        return fill_async(&(struct filling){target, count, value, size}, stream, false);                                             \
    }                                                                                                                                \
    ENTRY(own)(CUdeviceptr target, type value, size_t count, CUstream stream)                                                        \
    {                                                                                                                                \
        return fill_async(&(struct filling){target, count, value, size}, stream, true);                                              \
    }

FILL_PAIR(cuMemsetD8_v2, cuMemsetD8_v2_ptds, unsigned char, 1)
FILL_PAIR(cuMemsetD16_v2, cuMemsetD16_v2_ptds, unsigned short, 2)
FILL_PAIR(cuMemsetD32_v2, cuMemsetD32_v2_ptds, unsigned int, 4)
FILL_ASYNC_PAIR(cuMemsetD8Async, cuMemsetD8Async_ptsz, unsigned char, 1)
FILL_ASYNC_PAIR(cuMemsetD16Async, cuMemsetD16Async_ptsz, unsigned short, 2)
FILL_ASYNC_PAIR(cuMemsetD32Async, cuMemsetD32Async_ptsz, unsigned int, 4)
