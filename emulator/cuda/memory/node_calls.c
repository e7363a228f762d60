/*
 * See box.h: boxes of up to three dimensions, between hosts, devices and arrays; and the copy and fill nodes of graphs. A box moves row by row.
 * Invariant: an action whose parameters lead outside of memory is never made.
 */
#include <string.h>

#include "../context.h"
#include "../graph_action.h"
#include "../memory.h"
#include "array.h"
#include "box.h"
#include "copy.h"

/* One side of a box. */
struct side {
    uint64_t start;             /* of its first byte */
    uint64_t row, slice;        /* from one to the next */
    bool pageable;
};

static bool array_side(CUarray handle, const uint64_t at[3], struct side *out)
{
    const struct array *array = array_find(handle, false);
    if (array == NULL || array->start == 0)
        return false;
    out->row = array->layout.row_bytes;
    out->slice = array->layout.slice_bytes;
    out->start = array->start + at[0] + at[1] * out->row + at[2] * out->slice;
    return true;
}

struct side_request {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    uint64_t at[3];
    uint64_t pitch, height;
};

static bool side_of(const struct side_request *request, const CUDA_MEMCPY3D *copy, struct side *out)
{
    uint64_t width = copy->WidthInBytes, rows = copy->Height;
    *out = (struct side){.pageable = request->type == CU_MEMORYTYPE_HOST || request->type == CU_MEMORYTYPE_UNIFIED};
    if (request->type == CU_MEMORYTYPE_ARRAY)
        return array_side(request->array, request->at, out);
    if (request->type != CU_MEMORYTYPE_HOST && request->type != CU_MEMORYTYPE_DEVICE && request->type != CU_MEMORYTYPE_UNIFIED)
        return false;
    out->row = request->pitch == 0 ? request->at[0] + width : request->pitch;
    out->slice = out->row * (request->height == 0 ? request->at[1] + rows : request->height);
    uint64_t base = request->type == CU_MEMORYTYPE_HOST ? (uintptr_t)request->host : request->device;
    out->start = base + request->at[0] + request->at[1] * out->row + request->at[2] * out->slice;
    return base != 0 && out->row >= request->at[0] + width && (copy->Depth < 2 || out->slice >= out->row * rows);
}

static bool sides_of(const CUDA_MEMCPY3D *copy, struct side *target, struct side *source)
{
    const struct side_request from = {copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
                                   {copy->srcXInBytes, copy->srcY, copy->srcZ}, copy->srcPitch, copy->srcHeight};
    const struct side_request to = {copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
                                 {copy->dstXInBytes, copy->dstY, copy->dstZ}, copy->dstPitch, copy->dstHeight};
    memory_lock();
    bool right = side_of(&from, copy, source) && side_of(&to, copy, target);
    memory_unlock();
    return right && copy->srcLOD == 0 && copy->dstLOD == 0;
}

static struct transfer row_of(const CUDA_MEMCPY3D *copy, const struct side *target, const struct side *source, uint64_t y, uint64_t z)
{
    unsigned pageable = (target->pageable ? TARGET_PAGEABLE : 0) | (source->pageable ? SOURCE_PAGEABLE : 0);
    return (struct transfer){target->start + y * target->row + z * target->slice, source->start + y * source->row + z * source->slice,
                             copy->WidthInBytes, pageable};
}

static void perform_copy(const void *payload, struct stream *stream)
{
    const CUDA_MEMCPY3D *copy = payload;
    struct side target, source;
    (void)stream;
    if (!sides_of(copy, &target, &source))
        return;
    for (uint64_t z = 0; z < copy->Depth; z++) {
        for (uint64_t y = 0; y < copy->Height; y++) {
            const struct transfer row = row_of(copy, &target, &source, y, z);
            transfer_perform(&row);
        }
    }
}

/* From its first byte to its last, one allocation holds it, or mappings side by side. */
static bool is_there(const struct side *side, const CUDA_MEMCPY3D *copy, bool planned)
{
    struct stretch first;
    uint64_t extent = (copy->Depth - 1) * side->slice + (copy->Height - 1) * side->row + copy->WidthInBytes;
    memory_lock();
    bool there = allocation_covers(side->start, extent, side->pageable, planned, &first);
    memory_unlock();
    return there;
}

static CUresult check_box(const CUDA_MEMCPY3D *copy, bool planned, enum copy_route *route)
{
    struct side target, source;
    if (!sides_of(copy, &target, &source) || !is_there(&target, copy, planned) || !is_there(&source, copy, planned))
        return CUDA_ERROR_INVALID_VALUE;
    struct transfer first = row_of(copy, &target, &source, 0, 0);
    first.flags |= planned ? PLANNED : 0;
    return transfer_check(&first, route);
}

static CUresult check_context(CUcontext handle)
{
    struct context *context;
    return context_of(handle, &context);
}

CUresult box_copy_action(const CUDA_MEMCPY3D *copy, bool planned, enum copy_route *route, struct graph_action *out)
{
    CUresult result;
    *route = COPY_ON_DEVICE;
    if (copy->reserved0 != NULL || copy->reserved1 != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = copy->WidthInBytes * copy->Height * copy->Depth;
    if (bytes > 0 && (result = check_box(copy, planned, route)) != CUDA_SUCCESS)
        return result;
    *out = (struct graph_action){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .perform = perform_copy};
    out->work = (struct work){.kind = WORK_COPY, .cost_ns = copy_cost(*route, bytes)};
    _Static_assert(sizeof *copy <= ACTION_PAYLOAD, "a copy's parameters fit");
    memcpy(out->payload, copy, sizeof *copy);
    return CUDA_SUCCESS;
}

CUresult graph_copy_action(const CUDA_MEMCPY3D *copy, CUcontext context, struct graph_action *out)
{
    enum copy_route route;
    CUresult result = copy == NULL ? CUDA_ERROR_INVALID_VALUE : check_context(context);
    return result == CUDA_SUCCESS ? box_copy_action(copy, true, &route, out) : result;
}

static void perform_memset(const void *payload, struct stream *stream)
{
    const CUDA_MEMSET_NODE_PARAMS *fill = payload;
    (void)stream;
    for (size_t row = 0; row < fill->height; row++)
        memory_fill(fill->dst + row * fill->pitch, fill->value, fill->elementSize, fill->width);
}

CUresult box_fill_action(const CUDA_MEMSET_NODE_PARAMS *fill, bool planned, struct graph_action *out)
{
    unsigned size = fill->elementSize;
    if ((size != 1 && size != 2 && size != 4) || fill->width == 0 || fill->height == 0 ||
        (fill->height > 1 && (fill->pitch < fill->width * size || fill->pitch % size != 0)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = memory_fill_check(fill->dst, size, (fill->height - 1) * fill->pitch / size + fill->width, planned);
    if (result != CUDA_SUCCESS)
        return result;
    *out = (struct graph_action){.type = CU_GRAPH_NODE_TYPE_MEMSET, .perform = perform_memset};
    out->work = (struct work){.kind = WORK_COPY, .cost_ns = copy_cost(MEMSET, fill->width * size * fill->height)};
    memcpy(out->payload, fill, sizeof *fill);
    return CUDA_SUCCESS;
}

CUresult graph_memset_action(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context, struct graph_action *out)
{
    CUresult result = fill == NULL ? CUDA_ERROR_INVALID_VALUE : check_context(context);
    return result == CUDA_SUCCESS ? box_fill_action(fill, true, out) : result;
}
