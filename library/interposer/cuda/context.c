/*
 * Contexts come and go: passed through as they are, and reported to the code that follows their overhead. The variants of cuCtxCreate differ in their
 * arguments and are never put in each other's place. A green context holds the primary one of its device: made, it retains that, and destroyed, it
 * releases it. Its own end is nothing to anybody: what we keep lies in the primary one.
 *
 * There is no context on a GPU that the limits do not name, hence neither memory nor time of it. The answer is the driver's own for a GPU on which a
 * process may have none, at which the CUDA runtime tries the next one.
 */
#include "handles.h"
#include "hooks.h"
#include "memory/memory.h"

static struct handles attached;         /* contexts: cuCtxAttach without its cuCtxDetach */
static struct handles greens;           /* green contexts: their devices */
static struct handles own;              /* contexts that were seen made and are no primary ones: their devices */

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

static bool is_unnamed(CUdevice device)
{
    return !hook_nested() && device_index(device) == VCUDA_UNNAMED;
}

/* What may make a context on a device, with room for it. */
#define BEGINS(device, primary, symbol, ...)                                                                           \
    if (is_unnamed(device))                                                                                            \
        return CUDA_ERROR_DEVICE_UNAVAILABLE;                                                                          \
    memory_expect_context(device);                                                                                     \
    struct memory_context_room room;                                                                                   \
    if (!memory_context_begin(&room, device, primary))                                                                 \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    CUresult error = changed(DRIVER(symbol, __VA_ARGS__), device, true);                                               \
    memory_context_end(&room, error == CUDA_SUCCESS);

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    BEGINS(device, true, cuDevicePrimaryCtxRetain, context, device)
    if (error == CUDA_SUCCESS && !hook_nested())
        memory_primary(device, *context);
    return error;
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

/* It is gone for every holder, and another context may have its place already. */
#define ENDS_FOR_GOOD(device, context, symbol, argument)                                                               \
    memory_find_primary(device);                                                                                       \
    tell(device, context, CONTEXT_ENDING);                                                                             \
    CUresult error = DRIVER(symbol, argument);                                                                         \
    tell(device, context, error == CUDA_SUCCESS ? CONTEXT_GONE : CONTEXT_KEPT);                                        \
    return changed(error, device, false);

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    ENDS_FOR_GOOD(device, NULL, cuDevicePrimaryCtxReset, device)
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENDS_FOR_GOOD(device, NULL, cuDevicePrimaryCtxReset_v2, device)
}

static CUresult made(CUresult error, const CUcontext *context, CUdevice device)
{
    if (error == CUDA_SUCCESS && !hook_nested())
        handles_set(&own, *context, device);
    return error;
}

bool context_is_made(CUcontext context)
{
    return handles_get(&own, context, CU_DEVICE_INVALID) != CU_DEVICE_INVALID;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    BEGINS(device, false, cuCtxCreate, context, flags, device)
    return made(error, context, device);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    BEGINS(device, false, cuCtxCreate_v2, context, flags, device)
    return made(error, context, device);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params_array, int num_params, unsigned int flags, CUdevice device)
{
    BEGINS(device, false, cuCtxCreate_v3, context, params_array, num_params, flags, device)
    return made(error, context, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *ctx_create_params, unsigned int flags, CUdevice device)
{
    BEGINS(device, false, cuCtxCreate_v4, context, ctx_create_params, flags, device)
    return made(error, context, device);
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
    handles_forget(&attached, context);
    handles_forget(&own, context);
    ENDS(device, context, cuCtxDestroy, context)
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUdevice device = hook_nested() ? CU_DEVICE_INVALID : device_of(context);
    handles_forget(&attached, context);
    handles_forget(&own, context);
    ENDS(device, context, cuCtxDestroy_v2, context)
}

/* ---- from before CUDA 4: a context that is counted ---- */

CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUresult error = DRIVER(cuCtxAttach, context, flags);
    if (error == CUDA_SUCCESS && !hook_nested())
        handles_set(&attached, *context, handles_get(&attached, *context, 0) + 1);
    return error;
}

CUresult cuCtxDetach(CUcontext context)
{
    int more = handles_get(&attached, context, 0);
    if (hook_nested() || more > 0) {
        CUresult error = DRIVER(cuCtxDetach, context);
        if (error == CUDA_SUCCESS && more > 0)
            handles_set(&attached, context, more - 1);
        return error;
    }
    CUdevice device = device_of(context);
    handles_forget(&own, context);
    ENDS(device, context, cuCtxDetach, context)
}

/* ---- green contexts ---- */

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice device, unsigned int flags)
{
    struct memory_context_room room;
    if (is_unnamed(device))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (!memory_context_begin(&room, device, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuGreenCtxCreate, green, desc, device, flags);
    if (error == CUDA_SUCCESS && !hook_nested())
        handles_set(&greens, *green, device);
    changed(error, device, true);
    memory_context_end(&room, error == CUDA_SUCCESS);
    return error;
}

CUdevice context_green_device(CUgreenCtx green)
{
    return (CUdevice)handles_get(&greens, green, CU_DEVICE_INVALID);
}

/* It may be the last that holds the primary context. */
static CUresult destroy_green(CUgreenCtx green, CUdevice device)
{
    ENDS(device, NULL, cuGreenCtxDestroy, green)
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUdevice device = hook_nested() ? CU_DEVICE_INVALID : context_green_device(green);
    if (device == CU_DEVICE_INVALID)
        return DRIVER(cuGreenCtxDestroy, green);
    memory_green_ends(green);
    handles_forget(&greens, green);     /* before: the handle may come back at once */
    CUresult error = destroy_green(green, device);
    if (error != CUDA_SUCCESS)
        handles_set(&greens, green, device);
    return error;
}
