/* Owners; see owners.h. */
#include "owners.h"

#include "interposer/cuda/handles.h"
#include "memory.h"

enum { MOST_DEVICES = 256 };

static struct handles greens;                   /* devices, by the context that stands for a green one */
static const char green_owners[MOST_DEVICES];

const void *owners_green(CUdevice device)
{
    return device >= 0 && device < MOST_DEVICES ? &green_owners[device] : NULL;
}

CUcontext owners_context(void)
{
    CUcontext current = NULL;

    DRIVER(cuCtxGetCurrent, &current);
    return current;
}

const void *owners_current(void)
{
    return owners_of(owners_context());
}

const void *owners_of(CUcontext current)
{
    int device = handles_get(&greens, current, CU_DEVICE_INVALID);
    return device == CU_DEVICE_INVALID ? (const void *)current : owners_green(device);
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx ctx)
{
    CUresult error = DRIVER(cuCtxFromGreenCtx, context, ctx);

    if (error == CUDA_SUCCESS && !hook_nested() && context != NULL && context_green_device(ctx) != CU_DEVICE_INVALID)
        handles_set(&greens, *context, context_green_device(ctx));
    return error;
}

/* Its handle may come back for another context. */
void memory_green_ends(CUgreenCtx green)
{
    CUcontext context;

    if (atomic_load_explicit(&greens.first, memory_order_relaxed) != NULL && DRIVER(cuCtxFromGreenCtx, &context, green) == CUDA_SUCCESS)
        handles_forget(&greens, context);
}
