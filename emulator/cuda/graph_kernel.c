/* See graph_kernel.h. */
#include "graph_kernel.h"

#include <string.h>

static struct launch launch_of(const CUDA_KERNEL_NODE_PARAMS *params)
{
    return (struct launch){
        .handle = params->func != NULL ? params->func : (CUfunction)params->kern,
        .grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
        .block = {params->blockDimX, params->blockDimY, params->blockDimZ},
        .shared_bytes = params->sharedMemBytes,
        .parameters = params->kernelParams,
        .extra = params->extra,
    };
}

/* A function says its context itself; a kernel runs in the one that is given, or the current one. */
static CUresult context_of_launch(const struct launch *launch, CUcontext given, struct context **out)
{
    if (object_is(launch->handle, OBJECT_FUNCTION)) {
        *out = ((struct function *)launch->handle)->context;
        return CUDA_SUCCESS;
    }
    return context_of(given, out);
}

CUresult graph_check_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct launch *launch, struct work *work)
{
    struct context *context;
    if (params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *launch = launch_of(params);
    CUresult error = context_of_launch(launch, params->ctx, &context);
    return error == CUDA_SUCCESS ? launch_check(launch, context, work) : error;
}

CUDA_KERNEL_NODE_PARAMS graph_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    CUDA_KERNEL_NODE_PARAMS wide = {0};
    memcpy(&wide, params, sizeof *params);
    return wide;
}
