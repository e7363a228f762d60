/* The entry points of streams ("CUDA Driver API, Stream Management"), but for capture. */
#include "capture.h"
#include "capture_state.h"
#include "entry.h"
#include "green.h"
#include "lock.h"
#include "memory.h"
#include "memory/failure.h"
#include "stream_state.h"

enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

ENTRY(cuStreamCreateWithPriority)(CUstream *stream, unsigned int flags, int priority)
{
    struct context *context;
    CUresult error = context_require_own(&context);
    if (error == CUDA_SUCCESS && (stream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0))
        error = CUDA_ERROR_INVALID_VALUE;
    if (error != CUDA_SUCCESS)
        return error;
    priority = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
    driver_lock();
    *stream = (CUstream)stream_make(context, STREAM_EXPLICIT, flags, priority);
    driver_unlock();
    return *stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuStreamCreate)(CUstream *stream, unsigned int flags)
{
    return entry_cuStreamCreateWithPriority(stream, flags, 0);
}

ENTRY(cuStreamDestroy_v2)(CUstream handle)
{
    struct stream *stream;
    CUresult error = stream_of(handle, false, &stream);
    if (error != CUDA_SUCCESS && error != CUDA_ERROR_STREAM_DETACHED)
        return error;
    if (stream->role != STREAM_EXPLICIT)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    capture_leave(stream);
    stream_end(stream);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuStreamDestroy)(CUstream stream)
{
    return entry_cuStreamDestroy_v2(stream);
}

/* Asking for the state of a stream, or waiting for it. */
static CUresult check_asking(CUstream handle, bool per_thread, struct stream **stream)
{
    CUresult error = stream_of(handle, per_thread, stream);
    if (error == CUDA_SUCCESS)
        error = capture_forbids(*stream);
    return error == CUDA_SUCCESS ? unsafe_call() : error;
}

static CUresult synchronize(CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult error = check_asking(handle, per_thread, &stream);
    if (error == CUDA_SUCCESS)
        error = stream_wait(stream);
    if (error == CUDA_SUCCESS)
        memory_synchronised(stream->context);
    return error;
}

ENTRY(cuStreamSynchronize)(CUstream stream)
{
    return synchronize(stream, false);
}

ENTRY(cuStreamSynchronize_ptsz)(CUstream stream)
{
    return synchronize(stream, true);
}

static CUresult query(CUstream handle, bool per_thread)
{
    struct stream *stream;
    CUresult error = check_asking(handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    bool done = stream_is_done(stream);
    driver_unlock();
    if (done)
        memory_synchronised(stream->context);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

ENTRY(cuStreamQuery)(CUstream stream)
{
    return query(stream, false);
}

ENTRY(cuStreamQuery_ptsz)(CUstream stream)
{
    return query(stream, true);
}

/* `name`, and its _ptsz twin: reads something of the stream into `out`. */
#define STREAM_GETTER(name, type, expression)                                                                                    \
    static CUresult get_##name(CUstream handle, type *out, bool per_thread)                                                      \
    {                                                                                                                            \
        struct stream *stream;                                                                                                   \
        CUresult error = out == NULL ? CUDA_ERROR_INVALID_VALUE : stream_of(handle, per_thread, &stream);                        \
        if (error == CUDA_SUCCESS && failure_due(#name))                                                                         \
            error = CUDA_ERROR_OUT_OF_MEMORY;                                                                                    \
        if (error == CUDA_SUCCESS)                                                                                               \
            *out = (expression);                                                                                                 \
        return error;                                                                                                            \
    }                                                                                                                            \
    ENTRY(name)(CUstream stream, type *out)                                                                                      \
    {                                                                                                                            \
        return get_##name(stream, out, false);                                                                                   \
    }                                                                                                                            \
    ENTRY(name##_ptsz)(CUstream stream, type *out)                                                                               \
    {                                                                                                                            \
        return get_##name(stream, out, true);                                                                                    \
    }

STREAM_GETTER(cuStreamGetCtx, CUcontext, context_handle(stream->context))
STREAM_GETTER(cuStreamGetDevice, CUdevice, context_device(stream->context))
STREAM_GETTER(cuStreamGetFlags, unsigned int, stream->flags)
STREAM_GETTER(cuStreamGetPriority, int, stream->priority)
STREAM_GETTER(cuStreamGetId, unsigned long long, stream->role == STREAM_LEGACY ? 1 : stream->id)

static CUresult get_contexts(CUstream handle, CUcontext *context, CUgreenCtx *green, bool per_thread)
{
    struct stream *stream;
    CUresult error = context == NULL ? CUDA_ERROR_INVALID_VALUE : stream_of(handle, per_thread, &stream);
    if (error == CUDA_SUCCESS && failure_due("cuStreamGetCtx_v2"))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    if (error != CUDA_SUCCESS)
        return error;
    *context = context_handle(context_root(stream->context));
    if (green != NULL)
        *green = green_handle(stream->context);
    return CUDA_SUCCESS;
}

ENTRY(cuStreamGetCtx_v2)(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return get_contexts(stream, context, green, false);
}

ENTRY(cuStreamGetCtx_v2_ptsz)(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return get_contexts(stream, context, green, true);
}

ENTRY(cuStreamGetGreenCtx)(CUstream handle, CUgreenCtx *ctx)
{
    CUcontext root;
    return ctx == NULL ? CUDA_ERROR_INVALID_VALUE : get_contexts(handle, &root, ctx, false);
}
