/* The entry points that launch kernels and host functions ("CUDA Driver API, Execution Control"). */
#include <stdlib.h>

#include "capture.h"
#include "capture_state.h"
#include "entry.h"
#include "event.h"
#include "kernel_launch.h"
#include "lock.h"
#include "session.h"

static CUresult launch_in(struct launch *launch, struct stream *stream)
{
    struct work work;
    CUresult error = launch_check(launch, stream->context, &work);
    if (error != CUDA_SUCCESS)
        return error;
    if (capture_is_possible()) {
        driver_lock();
        bool taken = capture_takes(stream, &error);
        if (taken && error == CUDA_SUCCESS)
            error = capture_kernel(stream, launch, &work);
        driver_unlock();
        if (taken)
            return error;
    }
    return stream_enqueue(stream, &work, NULL);
}

static CUresult launch_on(struct launch *launch, CUstream handle, bool per_thread)
{
    struct context *current;
    struct stream *stream;
    CUresult error = context_require(&current);
    if (error == CUDA_SUCCESS)
        error = stream_of(handle, per_thread, &stream);
    return error == CUDA_SUCCESS ? launch_in(launch, stream) : error;
}

#define LAUNCH(is_cooperative, given_extra)                                                                                             \
    (struct launch)                                                                                                              \
    {                                                                                                                            \
        .handle = function, .grid = {grid_dim_x, grid_dim_y, grid_dim_z}, .block = {block_dim_x, block_dim_y, block_dim_z},      \
        .shared_bytes = shared_mem_bytes, .cooperative = (is_cooperative), .parameters = kernel_params, .extra = (given_extra)   \
    }

#define KERNEL_PARAMETERS                                                                                                        \
    CUfunction function, unsigned int grid_dim_x, unsigned int grid_dim_y, unsigned int grid_dim_z, unsigned int block_dim_x,    \
        unsigned int block_dim_y, unsigned int block_dim_z, unsigned int shared_mem_bytes, CUstream stream, void **kernel_params

ENTRY(cuLaunchKernel)(KERNEL_PARAMETERS, void **extra)
{
    return launch_on(&LAUNCH(false, extra), stream, false);
}

ENTRY(cuLaunchKernel_ptsz)(KERNEL_PARAMETERS, void **extra)
{
    return launch_on(&LAUNCH(false, extra), stream, true);
}

ENTRY(cuLaunchCooperativeKernel)(KERNEL_PARAMETERS)
{
    return launch_on(&LAUNCH(true, NULL), stream, false);
}

ENTRY(cuLaunchCooperativeKernel_ptsz)(KERNEL_PARAMETERS)
{
    return launch_on(&LAUNCH(true, NULL), stream, true);
}

static CUresult check_cluster(const CUlaunchAttributeValue *value, const CUlaunchConfig *config)
{
    struct context *context = context_current();
    unsigned x = value->clusterDim.x, y = value->clusterDim.y, z = value->clusterDim.z;
    if (x == 0 || y == 0 || z == 0 || (uint64_t)x * y * z > 16 || config->gridDimX % x != 0 || config->gridDimY % y != 0 || config->gridDimZ % z != 0)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return x * y * z > 1 && (context == NULL || context->gpu->facts->capability_major < 9) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* Events that the launch itself records, at its end here in both cases. */
static CUresult record_events(const CUlaunchConfig *config, bool per_thread)
{
    CUresult error = CUDA_SUCCESS;
    for (unsigned i = 0; i < config->numAttrs && error == CUDA_SUCCESS; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        CUevent event = attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT          ? attribute->value.programmaticEvent.event
                        : attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ? attribute->value.launchCompletionEvent.event
                                                                                       : NULL;
        if (event != NULL)
            error = (per_thread ? entry_cuEventRecord_ptsz : entry_cuEventRecord)(event, config->hStream);
    }
    return error;
}

static CUresult launch_configured(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, bool per_thread)
{
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct launch launch = {
        .handle = function,
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .parameters = parameters,
        .extra = extra,
    };
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttribute *attribute = &config->attrs[i];
        CUresult error = CUDA_SUCCESS;
        if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            launch.cooperative = attribute->value.cooperative != 0;
        else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            error = check_cluster(&attribute->value, config);
        else if ((unsigned)attribute->id > CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
            error = CUDA_ERROR_INVALID_VALUE;
        if (error != CUDA_SUCCESS)
            return error;
    }
    CUresult error = launch_on(&launch, config->hStream, per_thread);
    return error == CUDA_SUCCESS ? record_events(config, per_thread) : error;
}

ENTRY(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **kernel_params, void **extra)
{
    return launch_configured(config, function, kernel_params, extra, false);
}

ENTRY(cuLaunchKernelEx_ptsz)(const CUlaunchConfig *config, CUfunction function, void **kernel_params, void **extra)
{
    return launch_configured(config, function, kernel_params, extra, true);
}

/* One stream of each device, never a default one; all launches have one shape. */
static CUresult check_devices(const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct stream *stream;
        CUresult error = list[i].hStream == NULL ? CUDA_ERROR_INVALID_VALUE : stream_of(list[i].hStream, false, &stream);
        if (error != CUDA_SUCCESS)
            return error;
        if (stream->role != STREAM_EXPLICIT || list[i].gridDimX != list[0].gridDimX || list[i].blockDimX != list[0].blockDimX)
            return CUDA_ERROR_INVALID_VALUE;
        if (capture_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE)
            return capture_forbids(stream);
        for (unsigned other = 0; other < i; other++) {
            if (((struct stream *)list[other].hStream)->gpu == stream->gpu)
                return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    return CUDA_SUCCESS;
}

ENTRY(cuLaunchCooperativeKernelMultiDevice)(CUDA_LAUNCH_PARAMS *launch_params_list, unsigned int num_devices, unsigned int flags)
{
    if (launch_params_list == NULL || num_devices == 0 || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = check_devices(launch_params_list, num_devices);
    for (unsigned i = 0; i < num_devices && error == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launch_params_list[i];
        struct launch launch = {
            .handle = one->function,
            .grid = {one->gridDimX, one->gridDimY, one->gridDimZ},
            .block = {one->blockDimX, one->blockDimY, one->blockDimZ},
            .shared_bytes = one->sharedMemBytes,
            .cooperative = true,
            .parameters = one->kernelParams,
        };
        error = launch_in(&launch, (struct stream *)one->hStream);
    }
    return error;
}

static CUresult host_function(CUstream handle, CUhostFn function, void *data, bool per_thread)
{
    struct stream *stream;
    CUresult error = stream_of(handle, per_thread, &stream);
    if (error == CUDA_SUCCESS && function == NULL)
        error = CUDA_ERROR_INVALID_VALUE;
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    if (capture_takes(stream, &error))
        error = error == CUDA_SUCCESS ? capture_host(stream, function, data) : error;
    else if (!stream_push(stream, &(struct item){.kind = ITEM_HOST, .function = function, .data = data}))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    driver_unlock();
    return error;
}

ENTRY(cuLaunchHostFunc)(CUstream stream, CUhostFn fn, void *user_data)
{
    return host_function(stream, fn, user_data, false);
}

ENTRY(cuLaunchHostFunc_ptsz)(CUstream stream, CUhostFn fn, void *user_data)
{
    return host_function(stream, fn, user_data, true);
}

ENTRY(cuLaunchHostFunc_v2)(CUstream stream, CUhostFn fn, void *user_data, unsigned int sync_mode)
{
    return sync_mode > 1 ? CUDA_ERROR_INVALID_VALUE : host_function(stream, fn, user_data, false);
}

ENTRY(cuLaunchHostFunc_v2_ptsz)(CUstream stream, CUhostFn fn, void *user_data, unsigned int sync_mode)
{
    return sync_mode > 1 ? CUDA_ERROR_INVALID_VALUE : host_function(stream, fn, user_data, true);
}

struct callback {
    CUstreamCallback function;
    CUstream stream;
    void *data;
};

static void call_back(void *data)
{
    struct callback callback = *(struct callback *)data;
    free(data);
    callback.function(callback.stream, CUDA_SUCCESS, callback.data);
}

/* As a host function, but not in a capture. */
static CUresult add_callback(CUstream handle, CUstreamCallback function, void *data, unsigned flags, bool per_thread)
{
    struct stream *stream;
    CUresult error = function == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : stream_of(handle, per_thread, &stream);
    if (error == CUDA_SUCCESS)
        error = capture_forbids(stream);
    if (error != CUDA_SUCCESS)
        return error;
    struct callback *callback = malloc(sizeof *callback);
    if (callback == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *callback = (struct callback){function, handle, data};
    error = host_function(handle, call_back, callback, per_thread);
    if (error != CUDA_SUCCESS)
        free(callback);
    return error;
}

ENTRY(cuStreamAddCallback)(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return add_callback(stream, callback, data, flags, false);
}

ENTRY(cuStreamAddCallback_ptsz)(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return add_callback(stream, callback, data, flags, true);
}
