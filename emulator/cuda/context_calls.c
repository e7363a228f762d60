/* What can be asked of a context and set on it: device, flags, limits, peers, synchronising. */
#include "capture.h"
#include "capture_state.h"
#include "context_state.h"
#include "entry.h"
#include "lock.h"
#include "memory.h"
#include "session.h"
#include "usage.h"

ENTRY(cuCtxGetDevice_v2)(CUdevice *device, CUcontext handle)
{
    struct context *context;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = context_of(handle, &context);
    if (error == CUDA_SUCCESS)
        *device = context_device(context);
    return error;
}

ENTRY(cuCtxGetDevice)(CUdevice *device)
{
    return entry_cuCtxGetDevice_v2(device, NULL);
}

ENTRY(cuCtxGetFlags)(unsigned int *flags)
{
    struct context *context;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS && flags == NULL)
        error = CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS)
        *flags = context->flags;
    return error;
}

ENTRY(cuCtxGetId)(CUcontext handle, unsigned long long *ctx_id)
{
    struct context *context;
    if (ctx_id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = context_of(handle, &context);
    if (error == CUDA_SUCCESS)
        *ctx_id = context->id;
    return error;
}

ENTRY(cuCtxGetApiVersion)(CUcontext handle, unsigned int *version)
{
    struct context *context;
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = context_of(handle, &context);
    if (error == CUDA_SUCCESS)
        *version = context->api_version;
    return error;
}

ENTRY(cuCtxSynchronize_v2)(CUcontext handle)
{
    struct context *context;
    CUresult error = context_of(handle, &context);
    if (error == CUDA_SUCCESS)
        error = capture_forbids_context(context);
    if (error == CUDA_SUCCESS)
        error = context_wait(context);
    if (error == CUDA_SUCCESS)
        memory_synchronised(context);
    return error;
}

ENTRY(cuCtxSynchronize)(void)
{
    return entry_cuCtxSynchronize_v2(NULL);
}

static CUresult check_limit(CUlimit limit)
{
    return (unsigned)limit >= CONTEXT_LIMITS ? CUDA_ERROR_INVALID_VALUE
           : limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE || limit == CU_LIMIT_PER_BLOCK_MEMORY_SIZE ? CUDA_SUCCESS
                                                                                                    : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

ENTRY(cuCtxGetLimit)(size_t *pvalue, CUlimit limit)
{
    struct context *context;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = pvalue == NULL ? CUDA_ERROR_INVALID_VALUE : check_limit(limit);
    if (error == CUDA_SUCCESS)
        *pvalue = context->limits[limit];
    return error;
}

size_t context_default_limit(unsigned limit)
{
    static const size_t defaults[CONTEXT_LIMITS] = {
        [CU_LIMIT_STACK_SIZE] = 1024,
        [CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20,
        [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
        [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
        [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
        [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
    };
    return defaults[limit];
}

bool context_resize(struct context *context, uint64_t *has, uint64_t bytes)
{
    if (bytes > *has && !usage_take(context_device(context), bytes - *has))
        return false;
    if (bytes < *has)
        usage_give(context_device(context), *has - bytes);
    *has = bytes;
    return true;
}

static uint64_t product(uint64_t value, uint64_t count)
{
    uint64_t bytes;
    return __builtin_mul_overflow(value, count, &bytes) ? UINT64_MAX / 4 : bytes;
}

/* Each thread that can be on the GPU at once has a stack, and each block its own memory. */
static uint64_t limit_bytes(const struct context *context, CUlimit limit, uint64_t value)
{
    uint64_t processors = (uint64_t)context->gpu->multiprocessors;
    if (limit == CU_LIMIT_STACK_SIZE)
        return product(value, processors * context->gpu->threads_each);
    if (limit == CU_LIMIT_PER_BLOCK_MEMORY_SIZE)
        return product(value, processors * BLOCKS_EACH);
    return limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE ? value : 0;
}

static uint64_t all_limits(const struct context *context, CUlimit limit, uint64_t value)
{
    uint64_t all = 0;
    for (unsigned i = 0; i < CONTEXT_LIMITS; i++) {
        uint64_t now = limit_bytes(context, i, i == (unsigned)limit ? value : context->limits[i]);
        uint64_t included = limit_bytes(context, i, context_default_limit(i));
        all += now > included ? now - included : 0;
    }
    return all;
}

ENTRY(cuCtxSetLimit)(CUlimit limit, size_t value)
{
    struct context *context;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = check_limit(limit);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    bool fits = context_resize(context, &context->limits_bytes, all_limits(context, limit, value));
    if (fits)
        context->limits[limit] = value;
    driver_unlock();
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuCtxGetStreamPriorityRange)(int *least_priority, int *greatest_priority)
{
    struct context *context;
    CUresult error = context_require(&context);
    if (error != CUDA_SUCCESS)
        return error;
    if (least_priority != NULL)
        *least_priority = 0;
    if (greatest_priority != NULL)
        *greatest_priority = -5;
    return CUDA_SUCCESS;
}

static struct context **find_peer(struct context *context, const struct context *peer)
{
    for (unsigned i = 0; i < MAX_PEERS; i++) {
        if (context->peers[i] == peer)
            return &context->peers[i];
    }
    return NULL;
}

ENTRY(cuCtxEnablePeerAccess)(CUcontext peer_context, unsigned int flags)
{
    struct context *context, *peer;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS && (flags != 0 || peer_context == NULL))
        error = flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (error == CUDA_SUCCESS)
        error = context_of(peer_context, &peer);
    if (error != CUDA_SUCCESS)
        return error;
    if (peer->gpu == context->gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    driver_lock();
    struct context **place = find_peer(context, NULL);
    if (find_peer(context, peer) != NULL)
        error = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    else if (place == NULL)
        error = CUDA_ERROR_TOO_MANY_PEERS;
    else
        *place = peer;
    driver_unlock();
    return error;
}

ENTRY(cuCtxDisablePeerAccess)(CUcontext peer_context)
{
    struct context *context, *peer;
    CUresult error = context_require(&context);
    if (error == CUDA_SUCCESS)
        error = peer_context == NULL ? CUDA_ERROR_INVALID_CONTEXT : context_of(peer_context, &peer);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    struct context **place = find_peer(context, peer);
    if (place != NULL)
        *place = NULL;
    driver_unlock();
    return place != NULL ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
