/* See green.h. A green context's memory stays when it ends: streams that were made in it still point to it. */
#include "green.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "capture_internal.h"
#include "capture_state.h"
#include "context_state.h"
#include "entry.h"
#include "lock.h"
#include "session.h"
#include "stream_state.h"

struct green {
    struct object object;
    struct context context;
    CUdevice device;
};

_Static_assert(offsetof(struct green, context) % 16 == 0, "as addresses of objects are");

static _Atomic uint64_t violations;

/* For tests: how often a green context was made current to a thread while another had it. */
__attribute__((visibility("default"))) uint64_t vcuda_emulator_green_violations(void);

uint64_t vcuda_emulator_green_violations(void)
{
    return violations;
}

static struct green *green_of(const struct context *context)
{
    return (struct green *)(void *)((char *)(uintptr_t)context - offsetof(struct green, context));
}

CUgreenCtx green_handle(const struct context *context)
{
    return context->root == context ? NULL : (CUgreenCtx)green_of(context);
}

void green_enter(struct context *green)
{
    uint64_t thread = thread_number();
    driver_lock();
    if (green->held > 0 && green->holder != thread)
        violations++;
    else
        green->held++;
    green->holder = thread;
    driver_unlock();
}

bool green_refuses(const struct context *context)
{
    const char *events = context->root == context ? NULL : getenv("VCUDA_EMULATOR_GREEN_EVENTS");
    return events != NULL && strcmp(events, "refused") == 0;
}

static struct green *find(CUgreenCtx handle, CUresult *error)
{
    struct green *green = (struct green *)(void *)handle;
    *error = !object_is(handle, OBJECT_GREEN) ? CUDA_ERROR_INVALID_CONTEXT : green->context.alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return *error == CUDA_SUCCESS ? green : NULL;
}

static bool begin(struct green *green, struct context *root)
{
    struct context *context = &green->context;
    context->object = root->object;     /* its address is a CUcontext too */
    context->gpu = root->gpu;
    context->id = context_number();
    context->flags = root->flags;
    context->api_version = root->api_version;
    context->root = root;
    memcpy(context->limits, root->limits, sizeof context->limits);
    driver_lock();
    context->legacy = stream_make(context, STREAM_LEGACY, 0, 0);
    context->alive = context->legacy != NULL;
    context->next = contexts;
    if (context->alive)
        contexts = context;
    driver_unlock();
    return context->alive;
}

ENTRY(cuGreenCtxCreate)(CUgreenCtx *ctx, CUdevResourceDesc desc, CUdevice device, unsigned int flags)
{
    CUcontext primary;
    (void)desc;
    if (ctx == NULL || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = entry_cuDevicePrimaryCtxRetain(&primary, device);
    if (error != CUDA_SUCCESS)
        return error;
    struct green *green = object_begin(OBJECT_GREEN, sizeof *green);
    if (green == NULL || !begin(green, (struct context *)primary)) {
        entry_cuDevicePrimaryCtxRelease_v2(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->device = device;
    *ctx = (CUgreenCtx)green;
    return CUDA_SUCCESS;
}

/* Its streams are detached: they can only be destroyed. */
static void end(struct context *context)
{
    context_wait(context);
    driver_lock();
    context->alive = false;
    for (struct stream *stream = context->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        capture_leave(stream);
        if (stream->role != STREAM_EXPLICIT)
            stream_end(stream);
    }
    context->legacy = NULL;
    context_unlink(context);
    driver_unlock();
}

ENTRY(cuGreenCtxDestroy)(CUgreenCtx handle)
{
    CUresult error;
    struct green *green = find(handle, &error);
    if (green == NULL)
        return error;
    end(&green->context);
    return entry_cuDevicePrimaryCtxRelease_v2(green->device);
}

ENTRY(cuCtxFromGreenCtx)(CUcontext *context, CUgreenCtx ctx)
{
    CUresult error;
    struct green *green = find(ctx, &error);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (green != NULL)
        *context = context_handle(&green->context);
    return error;
}

ENTRY(cuGreenCtxStreamCreate)(CUstream *stream, CUgreenCtx handle, unsigned int flags, int priority)
{
    CUresult error;
    struct green *green = find(handle, &error);
    if (stream == NULL || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (green == NULL)
        return error;
    driver_lock();
    *stream = (CUstream)stream_make(&green->context, STREAM_EXPLICIT, flags, priority);
    driver_unlock();
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
