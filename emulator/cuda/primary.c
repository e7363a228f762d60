/*
 * The primary context of each device: one for the whole process, counted, and back under the same handle after its end
 * ("CUDA Driver API, Primary Context Management").
 */
#include <pthread.h>

#include "capture.h"
#include "context_state.h"
#include "entry.h"
#include "session.h"

enum { API_VERSION = 3020 };

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

static CUresult begin(struct gpu *gpu)
{
    if (gpu->primary != NULL)
        return context_begin(gpu->primary, gpu->primary_flags);
    return context_make(gpu, gpu->primary_flags, API_VERSION, true, &gpu->primary);
}

static bool is_active(const struct gpu *gpu)
{
    return gpu->primary != NULL && gpu->primary->alive;
}

ENTRY(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct gpu *gpu = &driver.gpus[device];
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&counting);
    if (!is_active(gpu))
        error = begin(gpu);
    if (error == CUDA_SUCCESS) {
        gpu->primary_references++;
        *context = context_handle(gpu->primary);
    }
    pthread_mutex_unlock(&counting);
    return error;
}

ENTRY(cuDevicePrimaryCtxRelease_v2)(CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct gpu *gpu = &driver.gpus[device];
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&counting);
    if (gpu->primary_references == 0)
        error = CUDA_ERROR_INVALID_CONTEXT;
    else if (--gpu->primary_references == 0 && is_active(gpu))
        context_end(gpu->primary);
    pthread_mutex_unlock(&counting);
    return error;
}

ENTRY(cuDevicePrimaryCtxRelease)(CUdevice device)
{
    return entry_cuDevicePrimaryCtxRelease_v2(device);
}

/* Ends it, also where others hold it; the references stay. */
ENTRY(cuDevicePrimaryCtxReset_v2)(CUdevice device)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult error = unsafe_call();
    if (error != CUDA_SUCCESS)
        return error;
    pthread_mutex_lock(&counting);
    if (is_active(&driver.gpus[device]))
        context_end(driver.gpus[device].primary);
    pthread_mutex_unlock(&counting);
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxReset)(CUdevice device)
{
    return entry_cuDevicePrimaryCtxReset_v2(device);
}

ENTRY(cuDevicePrimaryCtxSetFlags_v2)(CUdevice device, unsigned int flags)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = &driver.gpus[device];
    pthread_mutex_lock(&counting);
    gpu->primary_flags = flags;
    if (is_active(gpu))
        gpu->primary->flags = flags | CU_CTX_MAP_HOST;
    pthread_mutex_unlock(&counting);
    return CUDA_SUCCESS;
}

/* Before CUDA 11 a context that is active kept its flags. */
ENTRY(cuDevicePrimaryCtxSetFlags)(CUdevice device, unsigned int flags)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&counting);
    bool active = is_active(&driver.gpus[device]);
    pthread_mutex_unlock(&counting);
    return active ? CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE : entry_cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

ENTRY(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned int *flags, int *active)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct gpu *gpu = &driver.gpus[device];
    pthread_mutex_lock(&counting);
    *active = is_active(gpu);
    *flags = *active ? gpu->primary->flags : gpu->primary_flags;
    pthread_mutex_unlock(&counting);
    return CUDA_SUCCESS;
}
