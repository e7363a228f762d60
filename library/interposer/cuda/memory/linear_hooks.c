/*
 * cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemAdvise, cuMemFree.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY where the container has no room. Arguments that the driver
 * refuses (NULL, sizes of 0) go to it as they are. Invariant: no call of the driver but the asked one, its undoing, and who is current.
 */
#include "charging.h"
#include "memory.h"
#include "sizes.h"

static bool not_ours(const void *out)
{
    return hook_nested() || out == NULL || !account_needed();
}

/* What was allocated is recorded, or freed again. */
static CUresult keep(struct charging *charging, CUresult error, CUdeviceptr pointer, enum charge_kind kind)
{
    if (error == CUDA_SUCCESS && charge_end(charging, &charged_pointers, pointer, kind))
        return error;
    if (error == CUDA_SUCCESS) {
        DRIVER(cuMemFree_v2, pointer);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge_fail(charging);
    return error;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    struct charging charging;

    if (not_ours(pointer))
        return real.cuMemAlloc_v2(pointer, bytes);
    if (!charge_begin(&charging, sizes_charge(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMemAlloc_v2, pointer, bytes);
    return keep(&charging, error, error == CUDA_SUCCESS ? *pointer : 0, CHARGE_LINEAR);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    struct charging charging;

    if (not_ours(pointer))
        return real.cuMemAlloc(pointer, bytes);
    if (!charge_begin(&charging, sizes_charge(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMemAlloc, pointer, bytes);
    return keep(&charging, error, error == CUDA_SUCCESS ? *pointer : 0, CHARGE_LINEAR);
}

static bool begin_pitched(struct charging *charging, uint64_t width, uint64_t height)
{
    return charge_begin(charging, width == 0 || height == 0 ? 0 : sizes_charge(sizes_pitched(width, height)));
}

/* Now that the pitch is known. */
static CUresult keep_pitched(struct charging *charging, CUresult error, CUdeviceptr pointer, uint64_t bytes)
{
    if (error != CUDA_SUCCESS || charge_correct(charging, sizes_charge(bytes)))
        return keep(charging, error, pointer, CHARGE_LINEAR);
    DRIVER(cuMemFree_v2, pointer);
    charge_fail(charging);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_in_bytes, size_t height, unsigned int element_size_bytes)
{
    struct charging charging;

    if (not_ours(pointer) || pitch == NULL)
        return real.cuMemAllocPitch_v2(pointer, pitch, width_in_bytes, height, element_size_bytes);
    if (!begin_pitched(&charging, width_in_bytes, height))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMemAllocPitch_v2, pointer, pitch, width_in_bytes, height, element_size_bytes);
    return error == CUDA_SUCCESS ? keep_pitched(&charging, error, *pointer, sizes_rows(*pitch, height)) : keep(&charging, error, 0, CHARGE_LINEAR);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width_in_bytes, unsigned int height,
                         unsigned int element_size_bytes)
{
    struct charging charging;

    if (not_ours(pointer) || pitch == NULL)
        return real.cuMemAllocPitch(pointer, pitch, width_in_bytes, height, element_size_bytes);
    if (!begin_pitched(&charging, width_in_bytes, height))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMemAllocPitch, pointer, pitch, width_in_bytes, height, element_size_bytes);
    return error == CUDA_SUCCESS ? keep_pitched(&charging, error, *pointer, sizes_rows(*pitch, height)) : keep(&charging, error, 0, CHARGE_LINEAR);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    struct charging charging;

    if (not_ours(pointer))
        return real.cuMemAllocManaged(pointer, bytes, flags);
    if (!charge_begin(&charging, sizes_charge(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMemAllocManaged, pointer, bytes, flags);
    return keep(&charging, error, error == CUDA_SUCCESS ? *pointer : 0, CHARGE_MANAGED);
}

/* Pages go where advice prefers them, as soon as they are touched: not to a GPU that the limits do not name. Taking advice back moves nothing. */
static bool may_be_wanted_at(CUmem_advise advice, const CUmemLocation *location)
{
    return (advice != CU_MEM_ADVISE_SET_PREFERRED_LOCATION && advice != CU_MEM_ADVISE_SET_ACCESSED_BY) || memory_may_be_at(location);
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device)
{
    if (!may_be_wanted_at(advice, &(CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return real.cuMemAdvise(pointer, count, advice, device);
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUmemLocation location)
{
    if (!may_be_wanted_at(advice, &location))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return real.cuMemAdvise_v2(pointer, count, advice, location);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    struct uncharging uncharging;

    if (hook_nested() || !charges_ever(&charged_pointers))
        return real.cuMemFree_v2(pointer);
    uncharge_begin(&uncharging, &charged_pointers, pointer);
    CUresult error = DRIVER(cuMemFree_v2, pointer);
    uncharge_end(&uncharging, error);
    return error;
}

CUresult cuMemFree(CUdeviceptr_v1 pointer)
{
    struct uncharging uncharging;

    if (hook_nested() || !charges_ever(&charged_pointers))
        return real.cuMemFree(pointer);
    uncharge_begin(&uncharging, &charged_pointers, pointer);
    CUresult error = DRIVER(cuMemFree, pointer);
    uncharge_end(&uncharging, error);
    return error;
}
