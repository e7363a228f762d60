/*
 * CUDA arrays and mipmaps: made and destroyed.
 *
 * In: descriptors. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY. Arrays whose memory the application maps later (sparse, deferred) cost
 * nothing here: their memory is cuMemCreate's. cuArrayGetMemoryRequirements answers for those alone, so what an array takes is reckoned from its
 * descriptor; the driver's padding is found by the reconciliation of overhead.
 */
#include "charging.h"
#include "sizes.h"
#include "virtual_hooks.h"

static struct array_shape shape_of(const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned levels)
{
    return (struct array_shape){asked->Width, asked->Height, asked->Depth, asked->Format, asked->NumChannels, asked->Flags, levels};
}

static bool begin(struct charging *charging, const struct array_shape *shape)
{
    return charge_begin(charging, shape->width == 0 ? 0 : sizes_charge(sizes_array(shape)));
}

static bool not_ours(const void *out, const void *descriptor)
{
    return hook_nested() || out == NULL || descriptor == NULL || !account_needed();
}

static CUresult keep_array(struct charging *charging, CUresult error, const CUarray *array)
{
    if (error == CUDA_SUCCESS && charge_end(charging, &charged_arrays, (uintptr_t)*array, CHARGE_LINEAR))
        return error;
    if (error == CUDA_SUCCESS) {
        DRIVER(cuArrayDestroy, *array);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge_fail(charging);
    return error;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *asked)
{
    struct charging charging;

    if (not_ours(array, asked))
        return real.cuArrayCreate_v2(array, asked);
    struct array_shape shape = {asked->Width, asked->Height, 0, asked->Format, asked->NumChannels, 0, 1};
    if (!begin(&charging, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArrayCreate_v2, array, asked);
    return keep_array(&charging, error, array);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *asked)
{
    struct charging charging;

    if (not_ours(array, asked))
        return real.cuArrayCreate(array, asked);
    struct array_shape shape = {asked->Width, asked->Height, 0, asked->Format, asked->NumChannels, 0, 1};
    if (!begin(&charging, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArrayCreate, array, asked);
    return keep_array(&charging, error, array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked)
{
    struct charging charging;

    if (not_ours(array, asked))
        return real.cuArray3DCreate_v2(array, asked);
    struct array_shape shape = shape_of(asked, 1);
    if (!begin(&charging, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArray3DCreate_v2, array, asked);
    return keep_array(&charging, error, array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *asked)
{
    struct charging charging;

    if (not_ours(array, asked))
        return real.cuArray3DCreate(array, asked);
    struct array_shape shape = {asked->Width, asked->Height, asked->Depth, asked->Format, asked->NumChannels, asked->Flags, 1};
    if (!begin(&charging, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuArray3DCreate, array, asked);
    return keep_array(&charging, error, array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *asked, unsigned int levels)
{
    struct charging charging;

    if (not_ours(array, asked))
        return real.cuMipmappedArrayCreate(array, asked, levels);
    struct array_shape shape = shape_of(asked, levels);
    if (!begin(&charging, &shape))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMipmappedArrayCreate, array, asked, levels);
    if (error == CUDA_SUCCESS && charge_end(&charging, &charged_arrays, (uintptr_t)*array, CHARGE_LINEAR))
        return error;
    if (error == CUDA_SUCCESS) {
        DRIVER(cuMipmappedArrayDestroy, *array);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge_fail(&charging);
    return error;
}

CUresult cuArrayDestroy(CUarray array)
{
    struct uncharging uncharging;

    if (hook_nested())
        return real.cuArrayDestroy(array);
    uncharge_begin(&uncharging, &charged_arrays, (uintptr_t)array);
    CUresult error = DRIVER(cuArrayDestroy, array);
    uncharge_end(&uncharging, error);
    if (error == CUDA_SUCCESS)
        virtual_array_gone(array);
    return error;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct uncharging uncharging;

    if (hook_nested())
        return real.cuMipmappedArrayDestroy(array);
    uncharge_begin(&uncharging, &charged_arrays, (uintptr_t)array);
    CUresult error = DRIVER(cuMipmappedArrayDestroy, array);
    uncharge_end(&uncharging, error);
    if (error == CUDA_SUCCESS)
        virtual_array_gone(array);
    return error;
}
