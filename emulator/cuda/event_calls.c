/* The entry points of events ("CUDA Driver API, Event Management"). */
#include "capture_state.h"
#include "capture.h"
#include "entry.h"
#include "green.h"
#include "event.h"
#include "lock.h"
#include "memory.h"
#include "session.h"

enum {
    EVENT_FLAGS = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS,
    RESOLUTION_NS = 500,
};

#define PATIENCE_NS UINT64_C(100000000)

ENTRY(cuEventCreate)(CUevent *event, unsigned int flags)
{
    struct context *context;
    CUresult error = context_require(&context);
    if (error != CUDA_SUCCESS)
        return error;
    if (event == NULL || (flags & ~(unsigned)EVENT_FLAGS) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    *event = (CUevent)event_make(context, flags);
    return *event == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuEventDestroy_v2)(CUevent handle)
{
    struct event *event = event_of(handle);
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    event_end(event);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuEventDestroy)(CUevent event)
{
    return entry_cuEventDestroy_v2(event);
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, bool per_thread)
{
    struct event *event = event_of(handle);
    struct stream *stream;
    CUresult error = stream_of(stream_handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    if (event == NULL || event->context != context_root(stream->context) || green_refuses(stream->context))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (capture_takes(stream, &error)) {
        if (error == CUDA_SUCCESS)
            error = capture_record(stream, event, flags);
    } else {
        stream_hold_up(stream);
        error = flags != 0 ? CUDA_ERROR_INVALID_VALUE : event_record(event, stream);
    }
    driver_unlock();
    return error;
}

ENTRY(cuEventRecord)(CUevent event, CUstream stream)
{
    return record(event, stream, 0, false);
}

ENTRY(cuEventRecord_ptsz)(CUevent event, CUstream stream)
{
    return record(event, stream, 0, true);
}

ENTRY(cuEventRecordWithFlags)(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, stream, flags, false);
}

ENTRY(cuEventRecordWithFlags_ptsz)(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, stream, flags, true);
}

static CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags, bool per_thread)
{
    struct event *event = event_of(handle);
    struct stream *stream;
    CUresult error = stream_of(stream_handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    if (event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if ((flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    if (event->capture_id != 0 && flags == 0)
        error = capture_join(stream, event);
    else if (capture_takes(stream, &error))
        error = error == CUDA_SUCCESS ? capture_wait(stream, event, flags) : error;
    else
        error = event_precede(event, stream);
    driver_unlock();
    return error;
}

ENTRY(cuStreamWaitEvent)(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_event(stream, event, flags, false);
}

ENTRY(cuStreamWaitEvent_ptsz)(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_event(stream, event, flags, true);
}

/* Asking for the state of an event: not of a captured one, and not while a capture forbids it. */
static CUresult check_asking(CUevent handle, struct event **event)
{
    *event = event_of(handle);
    if (*event == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    CUresult error = capture_forbids_event(*event);
    driver_unlock();
    if (error != CUDA_SUCCESS)
        return error;
    return gpu_is_lost((*event)->gpu) ? CUDA_ERROR_UNKNOWN : unsafe_call();
}

ENTRY(cuEventQuery)(CUevent handle)
{
    struct event *event;
    CUresult error = check_asking(handle, &event);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    bool over = event_is_over(event, event->recorded);
    driver_unlock();
    if (over)
        memory_synchronised(event->context);
    return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

ENTRY(cuEventSynchronize)(CUevent handle)
{
    struct event *event;
    CUresult error = check_asking(handle, &event);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    uint64_t generation = event->recorded;
    while (event->placed < generation)
        driver_wait(clock_ns() + PATIENCE_NS);
    while (!event_is_over(event, generation))
        gpu_wait_a_while(event->gpu, event->v);
    driver_unlock();
    if (gpu_is_lost(event->gpu))
        return CUDA_ERROR_UNKNOWN;
    memory_synchronised(event->context);
    return CUDA_SUCCESS;
}

static bool can_be_timed(const struct event *event)
{
    return event != NULL && (event->flags & CU_EVENT_DISABLE_TIMING) == 0 && event->recorded > 0 && event->capture_id == 0;
}

ENTRY(cuEventElapsedTime)(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    struct event *start = event_of(start_handle), *end = event_of(end_handle);
    CUresult error = CUDA_SUCCESS;
    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!can_be_timed(start) || !can_be_timed(end) || start->context != end->context)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    if (!event_is_over(start, start->recorded) || !event_is_over(end, end->recorded))
        error = CUDA_ERROR_NOT_READY;
    if (error == CUDA_SUCCESS && (start->time == 0 || end->time == 0))
        event_settle(end->gpu);
    int64_t ns = (int64_t)(end->time - start->time);
    driver_unlock();
    if (error == CUDA_SUCCESS)
        *milliseconds = (float)((double)((ns + RESOLUTION_NS / 2) / RESOLUTION_NS * RESOLUTION_NS) / 1e6);
    return error;
}

ENTRY(cuEventElapsedTime_v2)(float *milliseconds, CUevent start, CUevent end)
{
    return entry_cuEventElapsedTime(milliseconds, start, end);
}
