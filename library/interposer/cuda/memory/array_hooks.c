/*
 * CUDA arrays and mipmaps: made and destroyed.
 *
 * In: descriptors. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY. Arrays whose memory the application maps later (sparse, deferred) cost
 * nothing here: their memory is cuMemCreate's. cuArrayGetMemoryRequirements answers for those alone, so what an array takes is reckoned from its
 * descriptor; the driver's padding is found by the reconciliation of overhead.
 */
#include "sizes.h"
#include "taking.h"
#include "virtual_hooks.h"

static struct array_shape shape_of(const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned levels)
{
    return (struct array_shape){asked->Width, asked->Height, asked->Depth, asked->Format, asked->NumChannels, asked->Flags, levels};
}

static bool begin(struct taking *taking, const struct array_shape *shape)
{
    return taking_begin(taking, shape->width == 0 ? 0 : sizes_charge(sizes_array(shape)));
}

static bool not_ours(const void *out, const void *descriptor)
{
    return hook_nested() || out == NULL || descriptor == NULL || !account_needed();
}

static CUresult keep_array(struct taking *taking, CUresult error, const CUarray *array)
{
    if (error == CUDA_SUCCESS && taking_end(taking, &taking_arrays, (uintptr_t)*array, CHARGE_LINEAR))
        return error;
    if (error == CUDA_SUCCESS) {
        DRIVER(cuArrayDestroy, *array);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    taking_fail(taking);
    return error;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *asked)
{
    struct taking taking;

    if (not_ours(array, asked))
        return real.cuArrayCreate_v2(array, asked);
    struct array_shape shape = {asked->Width, asked->Height, 0, asked->Format, asked->NumChannels, 0, 1};
    if (!begin(&taking, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArrayCreate_v2, array, asked);
    return keep_array(&taking, error, array);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *asked)
{
    struct taking taking;

    if (not_ours(array, asked))
        return real.cuArrayCreate(array, asked);
    struct array_shape shape = {asked->Width, asked->Height, 0, asked->Format, asked->NumChannels, 0, 1};
    if (!begin(&taking, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArrayCreate, array, asked);
    return keep_array(&taking, error, array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked)
{
    struct taking taking;

    if (not_ours(array, asked))
        return real.cuArray3DCreate_v2(array, asked);
    struct array_shape shape = shape_of(asked, 1);
    if (!begin(&taking, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArray3DCreate_v2, array, asked);
    return keep_array(&taking, error, array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *asked)
{
    struct taking taking;

    if (not_ours(array, asked))
        return real.cuArray3DCreate(array, asked);
    struct array_shape shape = {asked->Width, asked->Height, asked->Depth, asked->Format, asked->NumChannels, asked->Flags, 1};
    if (!begin(&taking, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArray3DCreate, array, asked);
    return keep_array(&taking, error, array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels)
{
    struct taking taking;

    if (not_ours(array, asked))
        return real.cuMipmappedArrayCreate(array, asked, levels);
    struct array_shape shape = shape_of(asked, levels);
    if (!begin(&taking, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMipmappedArrayCreate, array, asked, levels);
    if (error == CUDA_SUCCESS && taking_end(&taking, &taking_arrays, (uintptr_t)*array, CHARGE_LINEAR))
        return error;
    if (error == CUDA_SUCCESS) {
        DRIVER(cuMipmappedArrayDestroy, *array);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    taking_fail(&taking);
    return error;
}

CUresult cuArrayDestroy(CUarray array)
{
    struct giving giving;

    if (hook_nested())
        return real.cuArrayDestroy(array);
    giving_begin(&giving, &taking_arrays, (uintptr_t)array);
    CUresult error = DRIVER(cuArrayDestroy, array);
    giving_end(&giving, error);
    if (error == CUDA_SUCCESS)
        virtual_array_gone(array);
    return error;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct giving giving;

    if (hook_nested())
        return real.cuMipmappedArrayDestroy(array);
    giving_begin(&giving, &taking_arrays, (uintptr_t)array);
    CUresult error = DRIVER(cuMipmappedArrayDestroy, array);
    giving_end(&giving, error);
    if (error == CUDA_SUCCESS)
        virtual_array_gone(array);
    return error;
}
