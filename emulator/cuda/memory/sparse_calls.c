/*
 * Memory behind parts of sparse arrays: cuMemMapArrayAsync.
 *
 * In: parts of arrays, handles of memory. Out: nothing that can be read; the memory lives as long as it is behind something. A part is mapped and
 * unmapped as a whole here, in any size. Under memory_lock(). Invariant: the call changes everything that it is asked for, or nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "../context.h"
#include "../entry.h"
#include "../stream.h"
#include "array.h"
#include "virtual.h"

struct tile {
    const struct array *array;
    CUarrayMapInfo part;        /* its subresource alone */
    struct object *object;
    struct tile *next;
};

static struct tile *tiles;

static struct array *array_of(const CUarrayMapInfo *info)
{
    return info->resourceType == CU_RESOURCE_TYPE_ARRAY ? array_find(info->resource, false)
           : info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY ? array_find(info->resource, true)
                                                                   : NULL;
}

static CUarrayMapInfo part_of(const CUarrayMapInfo *info)
{
    CUarrayMapInfo part;
    memset(&part, 0, sizeof part);
    part.subresourceType = info->subresourceType;
    memcpy(&part.subresource, &info->subresource, sizeof part.subresource);
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {    /* what lies between and behind its members means nothing */
        part.subresource[0] &= UINT32_MAX;
        part.subresource[3] = 0;
    }
    return part;
}

static struct tile **find(const CUarrayMapInfo *info)
{
    const struct array *array = array_of(info);
    CUarrayMapInfo part = part_of(info);
    struct tile **at = &tiles;
    while (*at != NULL && ((*at)->array != array || memcmp(&(*at)->part, &part, sizeof part) != 0))
        at = &(*at)->next;
    return at;
}

static bool is_good(const CUarrayMapInfo *info)
{
    const struct array *array = array_of(info);
    if (array == NULL || (array->descriptor.Flags & CUDA_ARRAY3D_SPARSE) == 0 || info->flags != 0 || info->reserved[0] != 0 || info->reserved[1] != 0)
        return false;
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
        return info->memHandle == 0;
    return info->memOperationType == CU_MEM_OPERATION_TYPE_MAP && object_find(info->memHandle) != NULL;
}

static void drop(struct tile **at)
{
    struct tile *tile = *at;
    *at = tile->next;
    tile->object->mappings--;
    object_drop_unused(tile->object);
    free(tile);
}

static CUresult apply(const CUarrayMapInfo *info)
{
    struct tile **known = find(info);
    if (*known != NULL)
        drop(known);
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
        return CUDA_SUCCESS;
    struct tile *made = malloc(sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct tile){array_of(info), part_of(info), object_find(info->memHandle), tiles};
    made->object->mappings++;
    tiles = made;
    return CUDA_SUCCESS;
}

static CUresult map_arrays(const CUarrayMapInfo *list, unsigned count, CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && list == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = is_good(&list[i]) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = apply(&list[i]);
    memory_unlock();
    return result;
}

void sparse_array_gone(const struct array *array)
{
    for (struct tile **at = &tiles; *at != NULL;) {
        if ((*at)->array == array)
            drop(at);
        else
            at = &(*at)->next;
    }
}

ENTRY(cuMemMapArrayAsync)(CUarrayMapInfo *map_info_list, unsigned int count, CUstream stream)
{
    return map_arrays(map_info_list, count, stream, false);
}

ENTRY(cuMemMapArrayAsync_ptsz)(CUarrayMapInfo *map_info_list, unsigned int count, CUstream stream)
{
    return map_arrays(map_info_list, count, stream, true);
}
