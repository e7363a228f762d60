/* See kernel_launch.h. Limits are those of "CUDA C Programming Guide, Compute Capabilities". */
#include "kernel_launch.h"

#include <string.h>

#include "exchange.h"
#include "lock.h"
#include "session.h"

enum { BLOCK_THREADS = 1024, BLOCK_XY = 1024, BLOCK_Z = 64, GRID_YZ = 65535, DEFAULT_SHARED = 49152 };

static bool dimensions_fit(const struct launch *launch)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && grid[0] <= INT32_MAX && grid[1] <= GRID_YZ && grid[2] <= GRID_YZ && block[0] > 0 &&
           block[1] > 0 && block[2] > 0 && block[0] <= BLOCK_XY && block[1] <= BLOCK_XY && block[2] <= BLOCK_Z &&
           (uint64_t)block[0] * block[1] * block[2] <= BLOCK_THREADS;
}

/* The packed buffer that `extra` names; NULL: malformed. */
static const unsigned char *packed(const struct launch *launch)
{
    const unsigned char *buffer = NULL;
    const size_t *size = NULL;
    for (void **at = launch->extra; at[0] != CU_LAUNCH_PARAM_END; at += 2) {
        if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = at[1];
        else if (at[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            size = at[1];
        else
            return NULL;
    }
    return buffer != NULL && size != NULL && *size >= launch->function->entry->parameter_bytes ? buffer : NULL;
}

static bool parameters_fit(const struct launch *launch)
{
    if (launch->parameters != NULL && launch->extra != NULL)
        return false;
    if (launch->extra != NULL)
        return packed(launch) != NULL;
    return launch->parameters != NULL || launch->function->entry->parameter_count == 0;
}

static const void *parameter(const struct launch *launch, unsigned number)
{
    return launch->extra != NULL ? packed(launch) + launch->function->entry->parameters[number].offset : launch->parameters[number];
}

static uint64_t parameter_value(const struct launch *launch, unsigned number)
{
    uint32_t half = 0;
    uint64_t whole = 0;
    if (launch->function->entry->parameters[number].size == sizeof whole) {
        memcpy(&whole, parameter(launch, number), sizeof whole);
        return whole;
    }
    if (launch->function->entry->parameters[number].size == sizeof half)
        memcpy(&half, parameter(launch, number), sizeof half);
    return half;
}

bool launch_copy_parameters(const struct launch *launch, unsigned char *out)
{
    const struct ptx_entry *entry = launch->function->entry;
    if (!parameters_fit(launch))
        return false;
    for (unsigned i = 0; i < entry->parameter_count; i++)
        memcpy(out + entry->parameters[i].offset, parameter(launch, i), entry->parameters[i].size);
    return true;
}

static uint64_t threads_of(const struct launch *launch)
{
    return (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2] * launch->block[0] * launch->block[1] * launch->block[2];
}

static bool meet(const struct ptx_entry *entry, struct work *out)
{
    out->ranks = entry->cost.ranks;
    out->exchange = out->ranks > 1 ? exchange_find(entry->name) : NULL;
    return out->ranks <= 1 || out->exchange != NULL;
}

static void measure(const struct launch *launch, const struct gpu *gpu, struct work *out)
{
    enum { LONGEST_S = 1000000 };
    const struct kernel_cost *cost = &launch->function->entry->cost;
    uint64_t threads = threads_of(launch);
    double ns = cost->factor * (cost->parameter < 0 ? 1.0 : (double)parameter_value(launch, (unsigned)cost->parameter)) + (double)cost->constant_ns;
    if (cost->per_thread)
        ns *= (double)threads;
    out->kind = WORK_KERNEL;
    out->cost_ns = ns < LONGEST_S * 1e9 ? (uint64_t)ns : (uint64_t)(LONGEST_S * 1e9);
    out->wide = cost->width == WIDTH_WIDE ||
                (cost->width == WIDTH_BY_THREADS && threads >= (uint64_t)gpu->multiprocessors * gpu->threads_each / 2);
}

static CUresult check_cooperative(const struct launch *launch, const struct gpu *gpu)
{
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    unsigned fit = blocks_each(gpu, launch->block[0] * launch->block[1] * launch->block[2]);
    return blocks > (uint64_t)fit * gpu->multiprocessors ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

/* The context keeps as much as its threads ever needed, for all that can be on the GPU at once. */
static bool take_local(const struct launch *launch, struct context *context)
{
    uint64_t bytes, threads = (uint64_t)context->gpu->multiprocessors * context->gpu->threads_each;
    if (launch->function->entry->local_bytes == 0)
        return true;
    if (__builtin_mul_overflow(launch->function->entry->local_bytes, threads, &bytes))
        return false;
    driver_lock();
    bool fits = bytes <= context->local_bytes || context_resize(context, &context->local_bytes, bytes);
    driver_unlock();
    return fits;
}

CUresult launch_check(struct launch *launch, struct context *context, struct work *out)
{
    context = context_root(context);
    CUresult error = function_of(launch->handle, context, &launch->function);
    if (error != CUDA_SUCCESS)
        return error;
    const struct function *function = launch->function;
    if (function->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!dimensions_fit(launch) || !parameters_fit(launch))
        return CUDA_ERROR_INVALID_VALUE;
    if (launch->shared_bytes > (unsigned)(function->max_dynamic_shared > DEFAULT_SHARED ? function->max_dynamic_shared : DEFAULT_SHARED))
        return CUDA_ERROR_INVALID_VALUE;
    if (function->entry->max_threads != 0 && launch->block[0] * launch->block[1] * launch->block[2] > function->entry->max_threads)
        return CUDA_ERROR_INVALID_VALUE;
    if (!take_local(launch, context))
        return CUDA_ERROR_OUT_OF_MEMORY;
    measure(launch, context->gpu, out);
    if (!meet(function->entry, out))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return launch->cooperative ? check_cooperative(launch, context->gpu) : CUDA_SUCCESS;
}
