/* Contexts: begin, end, and the calling thread's stack of them. See context.h. */
#include "context_state.h"

#include "capture.h"
#include "capture_internal.h"
#include "entry.h"
#include "event.h"
#include "green.h"
#include "lock.h"
#include "memory.h"
#include "memory/failure.h"
#include "module.h"
#include "session.h"
#include "stream_state.h"
#include "usage.h"

enum { STACK = 128, API_VERSION_2 = 3010, API_VERSION = 3020 };

struct place {
    struct context *context;
    uint64_t id;                /* handles of ended contexts are used again */
};

struct context *contexts;
static _Atomic uint64_t last_id;
static __thread struct place stack[STACK];
static __thread unsigned depth;

uint64_t context_number(void)
{
    return atomic_fetch_add(&last_id, 1) + 1;
}

static bool is_alive(const struct place *place)
{
    return object_is(place->context, OBJECT_CONTEXT) && place->context->id == place->id && place->context->alive;
}

struct context *context_root(struct context *context)
{
    return context->root;
}

struct context *context_current(void)
{
    return depth > 0 && is_alive(&stack[depth - 1]) ? stack[depth - 1].context->root : NULL;
}

CUresult context_require_own(struct context **out)
{
    if (depth == 0 || stack[depth - 1].context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!is_alive(&stack[depth - 1]))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = stack[depth - 1].context;
    return gpu_is_lost((*out)->gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult context_require(struct context **out)
{
    CUresult error = context_require_own(out);
    if (error == CUDA_SUCCESS)
        *out = (*out)->root;
    return error;
}

CUresult context_of(CUcontext handle, struct context **out)
{
    if (handle == NULL)
        return context_require(out);
    *out = (struct context *)handle;
    bool is = object_is(handle, OBJECT_CONTEXT);
    stale_handles += !is || !(*out)->alive;
    if (!is)
        return CUDA_ERROR_INVALID_CONTEXT;
    return (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUcontext context_handle(struct context *context)
{
    return (CUcontext)context;
}

int context_device(const struct context *context)
{
    return context->gpu->ordinal;
}

/* The primary one is done when its green ones are. */
CUresult context_wait(struct context *context)
{
    driver_lock();
    for (struct context *at = contexts; at != NULL; at = at->next) {
        if (at != context && at->root != context)
            continue;
        for (struct stream *stream = at->streams; stream != NULL; stream = stream->next)
            stream_drain(stream, stream_ticket());
        gpu_wait(at->gpu, at->tail);
    }
    driver_unlock();
    return gpu_is_lost(context->gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static void default_limits(struct context *context)
{
    for (unsigned i = 0; i < CONTEXT_LIMITS; i++)
        context->limits[i] = context_default_limit(i);
}

static CUresult check_compute_mode(const struct gpu *gpu)
{
    enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };
    struct gpu_status status;
    struct occupancy occupancy;
    bool alone = true;
    state_read(gpu->state, &status);
    if (status.presence != PRESENT || status.compute_mode == PROHIBITED)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (status.compute_mode != EXCLUSIVE_PROCESS)
        return CUDA_SUCCESS;
    if (occupancy_read(&driver.machine, driver.paths.state, gpu->position, &occupancy)) {
        for (unsigned i = 0; i < occupancy.count; i++)
            alone = alone && (occupancy.occupants[i].slot == slot_own || occupancy.occupants[i].contexts == 0);
    }
    occupancy_free(&occupancy);
    return alone ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

/* The first context of a process on a GPU pays for what the driver keeps there. */
static uint64_t price(const struct gpu *gpu)
{
    return gpu->contexts == 0 ? driver.context_bytes : driver.further_bytes;
}

static CUresult charge(struct gpu *gpu)
{
    if (!slot_claim())
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = check_compute_mode(gpu);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    bool taken = usage_take(gpu->ordinal, price(gpu));
    if (taken) {
        gpu->contexts++;
        atomic_fetch_add(&gpu->shared->use[slot_own].contexts, 1);
    }
    driver_unlock();
    return taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void uncharge(struct gpu *gpu)
{
    driver_lock();
    atomic_fetch_sub(&gpu->shared->use[slot_own].contexts, 1);
    gpu->contexts--;
    usage_give(gpu->ordinal, price(gpu));
    driver_unlock();
}

CUresult context_begin(struct context *context, unsigned flags)
{
    CUresult error = charge(context->gpu);
    if (error != CUDA_SUCCESS)
        return error;
    context->flags = flags | CU_CTX_MAP_HOST;
    context->tail = context->blocking_tail = 0;
    default_limits(context);
    context->limits_bytes = context->local_bytes = 0;
    driver_lock();
    context->legacy = stream_make(context, STREAM_LEGACY, 0, 0);
    context->next = contexts;
    contexts = context;
    context->alive = context->legacy != NULL;
    driver_unlock();
    if (context->alive)
        return CUDA_SUCCESS;
    context_end(context);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult context_make(struct gpu *gpu, unsigned flags, unsigned api_version, bool primary, struct context **out)
{
    struct context *context = object_begin(OBJECT_CONTEXT, sizeof *context);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->gpu = gpu;
    context->id = context_number();
    context->api_version = api_version;
    context->primary = primary;
    context->root = context;
    context->references = 1;
    CUresult error = context_begin(context, flags);
    if (error == CUDA_SUCCESS)
        *out = context;
    else
        object_end(context);
    return error;
}

void context_unlink(struct context *context)
{
    for (struct context **at = &contexts; *at != NULL; at = &(*at)->next) {
        for (unsigned i = 0; i < MAX_PEERS; i++) {
            if ((*at)->peers[i] == context)
                (*at)->peers[i] = NULL;
        }
    }
    for (struct context **at = &contexts; *at != NULL; at = &(*at)->next) {
        if (*at == context) {
            *at = context->next;
            break;
        }
    }
}

void context_end(struct context *context)
{
    context_wait(context);
    modules_end(context);
    memory_context_gone(context);
    driver_lock();
    context->alive = false;
    events_end(context);
    while (context->streams != NULL)
        stream_end(context->streams);
    context->legacy = NULL;
    context_unlink(context);
    driver_unlock();
    usage_give(context_device(context), context->limits_bytes + context->local_bytes);
    uncharge(context->gpu);
}

/* Off the thread's stack: a green context may be on another's then. */
static void pop(void)
{
    struct context *context = stack[--depth].context;
    if (context != NULL && is_alive(&stack[depth]) && context->held > 0 && context->holder == thread_number())
        context->held--;
}

static CUresult push(struct context *context)
{
    if (depth == STACK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (context->root != context)
        green_enter(context);
    stack[depth++] = (struct place){context, context->id};
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device, unsigned api_version)
{
    struct context *context;
    if (out == NULL || (flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult error = unsafe_call();
    if (error == CUDA_SUCCESS)
        error = context_make(&driver.gpus[device], flags, api_version, false, &context);
    if (error != CUDA_SUCCESS)
        return error;
    error = push(context);
    *out = context_handle(context);
    return error;
}

ENTRY(cuCtxCreate)(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create(context, flags, device, API_VERSION_2);
}

ENTRY(cuCtxCreate_v2)(CUcontext *context, unsigned int flags, CUdevice device)
{
    return create(context, flags, device, API_VERSION);
}

ENTRY(cuCtxCreate_v3)(CUcontext *context, CUexecAffinityParam *params_array, int num_params, unsigned int flags, CUdevice device)
{
    if (num_params < 0 || (num_params > 0 && params_array == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return num_params > 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(context, flags, device, API_VERSION);
}

/* Its parameters ask for a share of the multiprocessors or for graphics interoperation. */
ENTRY(cuCtxCreate_v4)(CUcontext *context, CUctxCreateParams *ctx_create_params, unsigned int flags, CUdevice device)
{
    return ctx_create_params != NULL ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device, API_VERSION);
}

static CUresult destroy(CUcontext handle)
{
    struct context *context = (struct context *)handle;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = context_of(handle, &context);
    if (error != CUDA_SUCCESS)
        return error == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT : error;
    if (context->primary || context->root != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    error = unsafe_call();
    if (error != CUDA_SUCCESS)
        return error;
    context_end(context);
    if (depth > 0 && stack[depth - 1].context == context)
        pop();
    object_end(context);
    return CUDA_SUCCESS;
}

ENTRY(cuCtxDestroy_v2)(CUcontext context)
{
    return destroy(context);
}

ENTRY(cuCtxDestroy)(CUcontext context)
{
    return destroy(context);
}

ENTRY(cuCtxAttach)(CUcontext *out, unsigned int flags)
{
    struct context *context;
    CUresult error = out == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : context_require(&context);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    context->references++;
    driver_unlock();
    *out = context_handle(context);
    return CUDA_SUCCESS;
}

/* Only the calling thread's current one. */
ENTRY(cuCtxDetach)(CUcontext handle)
{
    struct context *context;
    CUresult error = context_require(&context);
    if (error != CUDA_SUCCESS)
        return error;
    if (context_handle(context) != handle || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    driver_lock();
    bool last = context->references == 1;
    if (!last)
        context->references--;
    driver_unlock();
    return last ? destroy(handle) : CUDA_SUCCESS;
}

ENTRY(cuCtxPushCurrent_v2)(CUcontext handle)
{
    struct context *context;
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = failure_due("cuCtxPushCurrent_v2") ? CUDA_ERROR_OUT_OF_MEMORY : context_of(handle, &context);
    return error == CUDA_SUCCESS ? push(context) : error;
}

ENTRY(cuCtxPushCurrent)(CUcontext context)
{
    return entry_cuCtxPushCurrent_v2(context);
}

ENTRY(cuCtxPopCurrent_v2)(CUcontext *context)
{
    if (depth == 0 || stack[depth - 1].context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    pop();
    if (context != NULL)
        *context = context_handle(stack[depth].context);
    return CUDA_SUCCESS;
}

ENTRY(cuCtxPopCurrent)(CUcontext *context)
{
    return entry_cuCtxPopCurrent_v2(context);
}

ENTRY(cuCtxSetCurrent)(CUcontext handle)
{
    struct context *context;
    CUresult error = handle == NULL ? CUDA_SUCCESS : context_of(handle, &context);
    if (error != CUDA_SUCCESS)
        return error;
    if (depth > 0)
        pop();
    return handle == NULL ? CUDA_SUCCESS : push(context);
}

ENTRY(cuCtxGetCurrent)(CUcontext *context)
{
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = depth > 0 ? context_handle(stack[depth - 1].context) : NULL;
    return CUDA_SUCCESS;
}
