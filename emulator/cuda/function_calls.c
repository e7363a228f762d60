/* What can be asked of functions and set on them ("CUDA Driver API, Execution Control"), and how many blocks fit on a multiprocessor. */
#include "entry.h"
#include "kernel_launch.h"
#include "module.h"
#include "session.h"

enum { NUM_REGS = 32, THREADS = 1024, DEFAULT_SHARED = 49152 };

/* The GPU of a function's context; a kernel has none before it is used: the first one that the process sees. */
static const struct gpu *gpu_of(const struct function *function)
{
    return function != NULL ? function->context->gpu : &driver.gpus[0];
}

static CUresult get(int *out, CUfunction_attribute attribute, const struct ptx_entry *entry, const struct function *function)
{
    const struct gpu_facts *facts = gpu_of(function)->facts;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *out = entry->max_threads != 0 ? (int)entry->max_threads : THREADS;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *out = NUM_REGS;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *out = (int)(facts->capability_major * 10 + facts->capability_minor);
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *out = function != NULL && function->max_dynamic_shared != 0 ? function->max_dynamic_shared : DEFAULT_SHARED;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *out = -1;
        return CUDA_SUCCESS;
    default:
        *out = 0;
        return (unsigned)attribute <= CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
}

ENTRY(cuFuncGetAttribute)(int *pi, CUfunction_attribute attrib, CUfunction handle)
{
    struct context *context = context_current();
    struct function *function;
    if (pi == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (object_is(handle, OBJECT_KERNEL) && context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult error = function_of(handle, context, &function);
    return error == CUDA_SUCCESS ? get(pi, attrib, function->entry, function) : error;
}

ENTRY(cuKernelGetAttribute)(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice device)
{
    if (pi == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(kernel, OBJECT_KERNEL))
        return CUDA_ERROR_INVALID_HANDLE;
    return device_valid(device) ? get(pi, attrib, ((struct kernel *)kernel)->entry, NULL) : CUDA_ERROR_INVALID_DEVICE;
}

ENTRY(cuFuncSetAttribute)(CUfunction handle, CUfunction_attribute attrib, int value)
{
    struct context *context;
    struct function *function;
    int most;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = function_of(handle, context, &function);
    if (error != CUDA_SUCCESS)
        return error;
    switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        entry_cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, context_device(context));
        if (value < 0 || value > most)
            return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return value >= -1 && value <= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

ENTRY(cuFuncSetCacheConfig)(CUfunction handle, CUfunc_cache config)
{
    struct context *context;
    struct function *function;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = function_of(handle, context, &function);
    return error != CUDA_SUCCESS ? error : (unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

ENTRY(cuFuncGetModule)(CUmodule *module, CUfunction handle)
{
    if (module == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!object_is(handle, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = (CUmodule)((struct function *)handle)->module;
    return CUDA_SUCCESS;
}

unsigned blocks_each(const struct gpu *gpu, unsigned threads)
{
    unsigned warps = (threads + 31) / 32 * 32, fit = warps == 0 ? 0 : gpu->threads_each / warps;
    return fit < BLOCKS_EACH ? fit : BLOCKS_EACH;
}

ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *num_blocks, CUfunction handle, int block_size, size_t dynamic_s_mem_size)
{
    struct context *context;
    struct function *function;
    int shared;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = num_blocks == NULL || block_size <= 0 ? CUDA_ERROR_INVALID_VALUE : function_of(handle, context, &function);
    if (error != CUDA_SUCCESS)
        return error;
    unsigned fit = block_size > THREADS ? 0 : blocks_each(context->gpu, (unsigned)block_size);
    entry_cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, context_device(context));
    if (dynamic_s_mem_size > 0 && (size_t)shared / dynamic_s_mem_size < fit)
        fit = (unsigned)((size_t)shared / dynamic_s_mem_size);
    *num_blocks = (int)fit;
    return CUDA_SUCCESS;
}
