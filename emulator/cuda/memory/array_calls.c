/*
 * Entry points of CUDA arrays and mipmapped arrays.
 *
 * In: descriptors of the application. Out: handles, descriptors, memory requirements. How much memory an array takes is array_layout.h's.
 * Invariant: an array's memory is taken and given back as linear memory of its size is.
 */
#include <stdlib.h>
#include <string.h>

#include "../capture.h"
#include "../context.h"
#include "../entry.h"
#include "array.h"
#include "failure.h"
#include "linear.h"

enum { UNBACKED = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING, TILE = 65536 };

static struct array *all;

struct array *array_find(const void *handle, bool mipmap)
{
    for (struct array *at = all; at != NULL; at = at->next) {
        if ((const void *)at == handle && at->mipmap == mipmap)
            return at;
    }
    return NULL;
}

static struct array *add(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, const struct array_layout *layout)
{
    struct array *made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (struct array){.descriptor = *descriptor, .layout = *layout, .levels = 1, .next = all};
    return all = made;
}

static void drop(const struct array *array)
{
    for (struct array **at = &all; *at != NULL;) {
        struct array *found = *at;
        if (found != array && found->whole != array) {
            at = &found->next;
            continue;
        }
        *at = found->next;
        free(found);
    }
}

static void release(struct array *array)
{
    if (array->allocation != NULL)
        linear_release(array->allocation);
    sparse_array_gone(array);
    drop(array);
}

void array_release(struct allocation *allocation)
{
    release(allocation->owner);
}

static CUresult back(struct array *array, struct context *context)
{
    if (array->descriptor.Flags & UNBACKED)
        return CUDA_SUCCESS;
    array->allocation = linear_make(ALLOCATION_ARRAY, context_device(context), ZONE_HIGH, array->layout.bytes);
    if (array->allocation == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->allocation->context = context_handle(context_root(context));
    array->allocation->owner = array;
    array->start = array->allocation->span.start;
    return CUDA_SUCCESS;
}

/* What both kinds of array are made of. `levels` 0: no mipmap. */
static CUresult make(const char *function, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels, struct array **out)
{
    struct context *context;
    struct array_layout layout;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        result = unsafe_call();
    if (result != CUDA_SUCCESS)
        return result;
    if (!array_layout_of(descriptor, levels == 0 ? 1 : levels, &layout))
        return CUDA_ERROR_INVALID_VALUE;
    if (failure_due(function))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory_lock();
    *out = add(descriptor, &layout);
    result = *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : back(*out, context);
    if (result == CUDA_SUCCESS) {
        (*out)->mipmap = levels > 0;
        (*out)->levels = levels > 0 ? levels : 1;
    } else if (*out != NULL) {
        drop(*out);
    }
    memory_unlock();
    return result;
}

static CUresult make_array(const char *function, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    struct array *made;
    CUresult result = make(function, descriptor, 0, &made);
    if (result == CUDA_SUCCESS)
        *out = (CUarray)(void *)made;
    return result;
}

ENTRY(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return array == NULL || descriptor == NULL ? CUDA_ERROR_INVALID_VALUE : make_array("cuArray3DCreate_v2", array, descriptor);
}

ENTRY(cuArray3DCreate)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *from)
{
    if (array == NULL || from == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR wide = {from->Width, from->Height, from->Depth, from->Format, from->NumChannels, from->Flags};
    return make_array("cuArray3DCreate", array, &wide);
}

ENTRY(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *from)
{
    if (array == NULL || from == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR full = {from->Width, from->Height, 0, from->Format, from->NumChannels, 0};
    return make_array("cuArrayCreate_v2", array, &full);
}

ENTRY(cuArrayCreate)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *from)
{
    if (array == NULL || from == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR full = {from->Width, from->Height, 0, from->Format, from->NumChannels, 0};
    return make_array("cuArrayCreate", array, &full);
}

/* More levels than the extents have are as many as they have. */
ENTRY(cuMipmappedArrayCreate)(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    struct array *made;
    if (array == NULL || descriptor == NULL || levels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned most = array_most_levels(descriptor);
    CUresult result = make("cuMipmappedArrayCreate", descriptor, levels < most ? levels : most, &made);
    if (result == CUDA_SUCCESS)
        *array = (CUmipmappedArray)(void *)made;
    return result;
}

static CUresult destroy(const void *handle, bool mipmap)
{
    struct context *context;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        result = unsafe_call();
    if (result == CUDA_SUCCESS)
        result = context_wait(context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    struct array *found = array_find(handle, mipmap);
    bool right = found != NULL && found->whole == NULL;
    if (right)
        release(found);
    memory_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

ENTRY(cuArrayDestroy)(CUarray array)
{
    return destroy(array, false);
}

ENTRY(cuMipmappedArrayDestroy)(CUmipmappedArray array)
{
    return destroy(array, true);
}

static struct array *level_of(struct array *whole, unsigned level)
{
    for (struct array *at = all; at != NULL; at = at->next) {
        if (at->whole == whole && at->level == level)
            return at;
    }
    struct array_layout layout;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = array_level(&whole->descriptor, level);
    struct array *made = array_layout_of(&descriptor, 1, &layout) ? add(&descriptor, &layout) : NULL;
    if (made == NULL)
        return NULL;
    made->whole = whole;
    made->level = level;
    made->start = whole->start == 0 ? 0 : whole->start + array_level_offset(&whole->descriptor, level);
    return made;
}

ENTRY(cuMipmappedArrayGetLevel)(CUarray *out, CUmipmappedArray handle, unsigned int level)
{
    CUresult result = CUDA_SUCCESS;
    memory_lock();
    struct array *whole = array_find(handle, true), *found = NULL;
    if (whole == NULL)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (out == NULL || level >= whole->levels)
        result = CUDA_ERROR_INVALID_VALUE;
    else if ((found = level_of(whole, level)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = (CUarray)(void *)found;
    memory_unlock();
    return result;
}

ENTRY(cuArray3DGetDescriptor_v2)(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct array *found = array_find(handle, false);
    if (found != NULL)
        *out = found->descriptor;
    memory_unlock();
    return found == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

ENTRY(cuArrayGetDescriptor_v2)(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle)
{
    CUDA_ARRAY3D_DESCRIPTOR full;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = entry_cuArray3DGetDescriptor_v2(&full, handle);
    if (result == CUDA_SUCCESS)
        *out = (CUDA_ARRAY_DESCRIPTOR){full.Width, full.Height, full.Format, full.NumChannels};
    return result;
}

/* Only an array whose memory comes later has requirements to ask for. */
static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, const void *handle, bool mipmap, CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    const struct array *found = array_find(handle, mipmap);
    bool right = found != NULL && out != NULL && found->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (right) {
        memset(out, 0, sizeof *out);
        out->size = (found->layout.bytes + TILE - 1) / TILE * TILE;
        out->alignment = TILE;
    }
    memory_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuArrayGetMemoryRequirements)(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice device)
{
    return requirements(out, array, false, device);
}

ENTRY(cuMipmappedArrayGetMemoryRequirements)(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray array, CUdevice device)
{
    return requirements(out, array, true, device);
}
