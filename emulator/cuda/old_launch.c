/* Launching as before CUDA 4.0: block shape, shared memory and parameters are set on the function, then it is launched ("Execution Control [DEPRECATED]"). */
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "module.h"
#include "session.h"

enum { MOST_BYTES = 4096, MOST_GRID = 65535 };

static struct function *old_function(CUfunction handle)
{
    return object_is(handle, OBJECT_FUNCTION) ? (struct function *)handle : NULL;
}

ENTRY(cuFuncSetBlockShape)(CUfunction handle, int x, int y, int z)
{
    struct function *function = old_function(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function->block[0] = (unsigned)x;
    function->block[1] = (unsigned)y;
    function->block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

ENTRY(cuFuncSetSharedSize)(CUfunction handle, unsigned int bytes)
{
    struct function *function = old_function(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    function->shared_bytes = bytes;
    return CUDA_SUCCESS;
}

static unsigned char *parameter_buffer(struct function *function)
{
    if (function->parameters == NULL)
        function->parameters = calloc(1, MOST_BYTES);
    return function->parameters;
}

ENTRY(cuParamSetSize)(CUfunction handle, unsigned int numbytes)
{
    struct function *function = old_function(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (numbytes > MOST_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    function->parameter_bytes = numbytes;
    return CUDA_SUCCESS;
}

ENTRY(cuParamSetv)(CUfunction handle, int offset, void *pointer, unsigned int numbytes)
{
    struct function *function = old_function(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (offset < 0 || pointer == NULL || (uint64_t)offset + numbytes > MOST_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned char *buffer = parameter_buffer(function);
    if (buffer == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(buffer + offset, pointer, numbytes);
    return CUDA_SUCCESS;
}

ENTRY(cuParamSeti)(CUfunction function, int offset, unsigned int value)
{
    return entry_cuParamSetv(function, offset, &value, sizeof value);
}

ENTRY(cuParamSetf)(CUfunction function, int offset, float value)
{
    return entry_cuParamSetv(function, offset, &value, sizeof value);
}

static CUresult launch(CUfunction handle, int width, int height, CUstream stream)
{
    struct function *function = old_function(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (width <= 0 || height <= 0 || width > MOST_GRID || height > MOST_GRID)
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = function->parameter_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameter_buffer(function), CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    return entry_cuLaunchKernel(handle, (unsigned)width, (unsigned)height, 1, function->block[0], function->block[1], function->block[2],
                                function->shared_bytes, stream, NULL, extra);
}

ENTRY(cuLaunch)(CUfunction function)
{
    return launch(function, 1, 1, NULL);
}

ENTRY(cuLaunchGrid)(CUfunction function, int grid_width, int grid_height)
{
    return launch(function, grid_width, grid_height, NULL);
}

ENTRY(cuLaunchGridAsync)(CUfunction function, int grid_width, int grid_height, CUstream stream)
{
    return launch(function, grid_width, grid_height, stream);
}
