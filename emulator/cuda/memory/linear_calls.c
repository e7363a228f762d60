/*
 * Entry points of linear memory: cuMemAlloc and its kin, cuMemFree, cuMemGetInfo, cuMemGetAddressRange.
 *
 * In: arguments of the application. Out: pointers and the driver's error codes. Whatever comes from elsewhere (a pool, a graph,
 * another process) is freed by its family. Invariant: a failed call leaves its output alone.
 */
#include <limits.h>

#include "../capture.h"
#include "../context.h"
#include "../entry.h"
#include "../memory.h"
#include "../usage.h"
#include "copy.h"
#include "failure.h"
#include "foreign.h"
#include "linear.h"
#include "pool.h"

/* A call that allocates: in a context, outside of captures that forbid it. */
static CUresult may_allocate(struct context **context)
{
    CUresult result = context_require(context);
    return result == CUDA_SUCCESS ? unsafe_call() : result;
}

static CUresult allocate(struct context *context, enum allocation_kind kind, enum space_zone zone, uint64_t bytes, CUdeviceptr *pointer)
{
    memory_lock();
    struct allocation *made = linear_make(kind, context_device(context), zone, bytes);
    if (made != NULL) {
        made->context = context_handle(context_root(context));
        *pointer = made->span.start;
    }
    memory_unlock();
    return made == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult allocate_plain(const char *function, enum space_zone zone, uint64_t bytes, CUdeviceptr *pointer)
{
    struct context *context;
    CUresult result = may_allocate(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return failure_due(function) ? CUDA_ERROR_OUT_OF_MEMORY : allocate(context, ALLOCATION_LINEAR, zone, bytes, pointer);
}

ENTRY(cuMemAlloc_v2)(CUdeviceptr *pointer, size_t bytes)
{
    return pointer == NULL ? CUDA_ERROR_INVALID_VALUE : allocate_plain("cuMemAlloc_v2", ZONE_HIGH, bytes, pointer);
}

ENTRY(cuMemAlloc)(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    CUdeviceptr made = 0;
    if (pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate_plain("cuMemAlloc", ZONE_LOW, bytes, &made);
    if (result == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1)made;
    return result;
}

struct pitched {
    const char *function;
    enum space_zone zone;
    uint64_t width, height, element;
};

static CUresult allocate_pitched(const struct pitched *request, CUdeviceptr *pointer, uint64_t *pitch)
{
    uint64_t element = request->element;
    if (request->width == 0 || request->height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (request->width > UINT64_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pitch = (request->width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    if (request->height > UINT64_MAX / *pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate_plain(request->function, request->zone, *pitch * request->height, pointer);
}

ENTRY(cuMemAllocPitch_v2)(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    uint64_t made_pitch;
    if (pointer == NULL || pitch == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct pitched request = {"cuMemAllocPitch_v2", ZONE_HIGH, width, height, element};
    CUresult result = allocate_pitched(&request, pointer, &made_pitch);
    if (result == CUDA_SUCCESS)
        *pitch = made_pitch;
    return result;
}

ENTRY(cuMemAllocPitch)(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
    uint64_t made_pitch;
    CUdeviceptr made;
    if (pointer == NULL || pitch == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct pitched request = {"cuMemAllocPitch", ZONE_LOW, width, height, element};
    CUresult result = allocate_pitched(&request, &made, &made_pitch);
    if (result == CUDA_SUCCESS) {
        *pointer = (CUdeviceptr_v1)made;
        *pitch = (unsigned)made_pitch;
    }
    return result;
}

ENTRY(cuMemAllocManaged)(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    struct context *context;
    CUresult result = may_allocate(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (failure_due("cuMemAllocManaged"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate(context, ALLOCATION_MANAGED, ZONE_HIGH, bytes, pointer);
}

static CUresult release(struct allocation *found)
{
    switch (found->kind) {
    case ALLOCATION_LINEAR:
    case ALLOCATION_MANAGED:
        linear_release(found);
        return CUDA_SUCCESS;
    case ALLOCATION_POOLED:
        pool_free_now(found);
        return CUDA_SUCCESS;
    case ALLOCATION_GRAPH:
        return graph_memory_free_now(found);
    case ALLOCATION_IMPORTED:
        foreign_release(found);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Work that was queued may still use plain memory: the driver waits for it. Memory of pools and graphs is its user's to order. */
static bool waits(CUdeviceptr pointer)
{
    memory_lock();
    const struct allocation *found = allocation_at(pointer);
    bool plain = found != NULL && (found->kind == ALLOCATION_LINEAR || found->kind == ALLOCATION_MANAGED);
    memory_unlock();
    return plain;
}

ENTRY(cuMemFree_v2)(CUdeviceptr pointer)
{
    struct context *context;
    CUresult result = may_allocate(&context);
    if (result != CUDA_SUCCESS || pointer == 0)
        return result;
    if (waits(pointer) && (result = context_wait(context)) != CUDA_SUCCESS)
        return result;
    memory_lock();
    struct allocation *found = allocation_at(pointer);
    result = found == NULL ? CUDA_ERROR_INVALID_VALUE : release(found);
    memory_unlock();
    return result;
}

ENTRY(cuMemFree)(CUdeviceptr_v1 pointer)
{
    return entry_cuMemFree_v2(pointer);
}

ENTRY(cuMemGetInfo_v2)(size_t *free_bytes, size_t *total_bytes)
{
    struct context *context;
    uint64_t unused, all;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    usage_totals(context_device(context), &unused, &all);
    if (free_bytes != NULL)
        *free_bytes = unused;
    if (total_bytes != NULL)
        *total_bytes = all;
    return CUDA_SUCCESS;
}

/* A word of 32 bits says "as much as I can say" of a larger GPU. */
ENTRY(cuMemGetInfo)(unsigned int *free_bytes, unsigned int *total_bytes)
{
    size_t unused, all;
    CUresult result = entry_cuMemGetInfo_v2(&unused, &all);
    if (result != CUDA_SUCCESS)
        return result;
    if (free_bytes != NULL)
        *free_bytes = unused < UINT_MAX ? (unsigned)unused : UINT_MAX;
    if (total_bytes != NULL)
        *total_bytes = all < UINT_MAX ? (unsigned)all : UINT_MAX;
    return CUDA_SUCCESS;
}

ENTRY(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    struct context *context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    const struct allocation *found = allocation_holding(pointer);
    if (found == NULL || found->kind == ALLOCATION_ARRAY)
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS && base != NULL)
        *base = found->span.start;
    if (result == CUDA_SUCCESS && size != NULL)
        *size = found->span.size;
    memory_unlock();
    return result;
}

ENTRY(cuMemGetAddressRange)(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 pointer)
{
    CUdeviceptr found;
    size_t bytes;
    CUresult result = entry_cuMemGetAddressRange_v2(&found, &bytes, pointer);
    if (result != CUDA_SUCCESS)
        return result;
    if (base != NULL)
        *base = (CUdeviceptr_v1)found;
    if (size != NULL)
        *size = (unsigned)bytes;
    return CUDA_SUCCESS;
}

CUresult memory_global_make(struct context *context, uint64_t bytes, CUdeviceptr *out)
{
    CUresult result = allocate(context, ALLOCATION_LINEAR, ZONE_HIGH, bytes == 0 ? 1 : bytes, out);
    if (result != CUDA_SUCCESS)
        return result;
    memory_fill(*out, 0, 1, bytes);
    memory_lock();
    allocation_at(*out)->context = NULL; /* its module drops it */
    memory_unlock();
    return CUDA_SUCCESS;
}

void memory_global_drop(CUdeviceptr pointer)
{
    memory_lock();
    struct allocation *found = allocation_at(pointer);
    if (found != NULL && found->kind == ALLOCATION_LINEAR)
        linear_release(found);
    memory_unlock();
}
