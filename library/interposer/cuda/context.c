/*
 * Contexts come and go: passed through as they are, and told to whoever follows their overhead. The variants of cuCtxCreate differ in their
 * arguments and are never put in each other's place.
 */
#include "hooks.h"
#include "memory/memory.h"

enum { MAX_CALLBACKS = 4 };
static context_callback *_Atomic callbacks[MAX_CALLBACKS];
static context_end_callback *_Atomic end_callbacks[MAX_CALLBACKS];

void context_on_change(context_callback *callback)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        context_callback *held = NULL;
        if (atomic_compare_exchange_strong(&callbacks[i], &held, callback) || held == callback)
            return;
    }
}

void context_on_end(context_end_callback *callback)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        context_end_callback *held = NULL;
        if (atomic_compare_exchange_strong(&end_callbacks[i], &held, callback) || held == callback)
            return;
    }
}

static void tell(CUdevice device, CUcontext context, enum context_fate fate)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        context_end_callback *callback = atomic_load(&end_callbacks[i]);
        if (callback != NULL && !hook_nested())
            callback(device, context, fate);
    }
}

/* A primary context that others still hold goes on. */
static enum context_fate fate_of(CUdevice device, CUcontext context, CUresult error)
{
    unsigned int flags;
    int active = 0;
    if (error == CUDA_SUCCESS && context == NULL && DRIVER(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active != 0)
        return CONTEXT_KEPT;
    return error == CUDA_SUCCESS ? CONTEXT_GONE : CONTEXT_KEPT;
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
    memory_expect_context(device);
    return changed(DRIVER(cuDevicePrimaryCtxRetain, context, device), device, true);
}

/* What may end a context, between telling those who keep something in it. */
#define ENDS(device, context, symbol, argument)                                                                        \
    tell(device, context, CONTEXT_ENDING);                                                                             \
    CUresult error = DRIVER(symbol, argument);                                                                         \
    tell(device, context, fate_of(device, context, error));                                                            \
    return changed(error, device, false);

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    ENDS(device, NULL, cuDevicePrimaryCtxRelease, device)
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENDS(device, NULL, cuDevicePrimaryCtxRelease_v2, device)
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    ENDS(device, NULL, cuDevicePrimaryCtxReset, device)
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENDS(device, NULL, cuDevicePrimaryCtxReset_v2, device)
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    memory_expect_context(device);
    return changed(DRIVER(cuCtxCreate, context, flags, device), device, true);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    memory_expect_context(device);
    return changed(DRIVER(cuCtxCreate_v2, context, flags, device), device, true);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params_array, int num_params, unsigned int flags, CUdevice device)
{
    memory_expect_context(device);
    return changed(DRIVER(cuCtxCreate_v3, context, params_array, num_params, flags, device), device, true);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *ctx_create_params, unsigned int flags, CUdevice device)
{
    memory_expect_context(device);
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
    ENDS(device, context, cuCtxDestroy, context)
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUdevice device = hook_nested() ? CU_DEVICE_INVALID : device_of(context);
    ENDS(device, context, cuCtxDestroy_v2, context)
}

/* A green context ends with the context that stands for it, if one was ever asked for. */
CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext context = NULL;
    if (hook_nested() || DRIVER(cuCtxFromGreenCtx, &context, green) != CUDA_SUCCESS || context == NULL)
        return DRIVER(cuGreenCtxDestroy, green);
    CUdevice device = device_of(context);
    ENDS(device, context, cuGreenCtxDestroy, green)
}
