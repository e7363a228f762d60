/*
 * Contexts come and go: passed through as they are, and told to whoever follows their overhead. The variants of cuCtxCreate differ in their
 * arguments and are never put in each other's place.
 */
#include "hooks.h"

enum { MAX_CALLBACKS = 4 };
static context_callback *_Atomic callbacks[MAX_CALLBACKS];

void context_on_change(context_callback *callback)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        context_callback *held = NULL;
        if (atomic_compare_exchange_strong(&callbacks[i], &held, callback) || held == callback)
            return;
    }
}

static CUresult changed(CUresult error, CUdevice device, bool created)
{
    if (error != CUDA_SUCCESS || hook_nested())
        return error;
    if (created)
        vcuda_helper_watch();
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        context_callback *callback = atomic_load(&callbacks[i]);
        if (callback != NULL)
            callback(device, created);
    }
    return error;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return changed(DRIVER(cuDevicePrimaryCtxRetain, context, device), device, true);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return changed(DRIVER(cuDevicePrimaryCtxRelease, device), device, false);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return changed(DRIVER(cuDevicePrimaryCtxRelease_v2, device), device, false);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return changed(DRIVER(cuDevicePrimaryCtxReset, device), device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return changed(DRIVER(cuDevicePrimaryCtxReset_v2, device), device, false);
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    return changed(DRIVER(cuCtxCreate, context, flags, device), device, true);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    return changed(DRIVER(cuCtxCreate_v2, context, flags, device), device, true);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params_array, int num_params, unsigned int flags, CUdevice device)
{
    return changed(DRIVER(cuCtxCreate_v3, context, params_array, num_params, flags, device), device, true);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *ctx_create_params, unsigned int flags, CUdevice device)
{
    return changed(DRIVER(cuCtxCreate_v4, context, ctx_create_params, flags, device), device, true);
}

/* The device of a context can be asked only while the context is current; it need not be. */
static CUdevice device_of(CUcontext context)
{
    CUdevice device = CU_DEVICE_INVALID;
    CUcontext before;
    if (context == NULL || DRIVER(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
        return CU_DEVICE_INVALID;
    if (DRIVER(cuCtxGetDevice, &device) != CUDA_SUCCESS)
        device = CU_DEVICE_INVALID;
    DRIVER(cuCtxPopCurrent_v2, &before);
    return device;
}

CUresult cuCtxDestroy(CUcontext context)
{
    CUdevice device = hook_nested() ? CU_DEVICE_INVALID : device_of(context);
    return changed(DRIVER(cuCtxDestroy, context), device, false);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUdevice device = hook_nested() ? CU_DEVICE_INVALID : device_of(context);
    return changed(DRIVER(cuCtxDestroy_v2, context), device, false);
}
