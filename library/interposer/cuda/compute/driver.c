/* The driver and the clock, as measuring sees them (timebase.h). Every call has the guard up: what it launches or allocates is not the application's. */
#include "interposer/cuda/hooks.h"
#include "process.h"
#include "sleep_until.h"

static CUresult create(CUevent *event, unsigned int flags)
{
    return DRIVER(cuEventCreate, event, flags);
}

/* In a stream that takes part in a capture a mark would become part of the graph. */
static CUresult record(CUevent event, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (HAS(cuStreamIsCapturing)) {
        CUresult error = DRIVER(cuStreamIsCapturing, stream, &status);
        if (error != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return DRIVER(cuEventRecord, event, stream);
}

static CUresult query(CUevent event)
{
    return DRIVER(cuEventQuery, event);
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    return HAS(cuEventElapsedTime) ? DRIVER(cuEventElapsedTime, milliseconds, start, end) : DRIVER(cuEventElapsedTime_v2, milliseconds, start, end);
}

static CUresult push(CUcontext context)
{
    return DRIVER(cuCtxPushCurrent_v2, context);
}

static CUresult pop(CUcontext *context)
{
    return DRIVER(cuCtxPopCurrent_v2, context);
}

static CUresult exchange(CUstreamCaptureMode *mode)
{
    return DRIVER(cuThreadExchangeStreamCaptureMode, mode);
}

static CUresult query_stream(CUstream stream)
{
    return DRIVER(cuStreamQuery, stream);
}

const struct measuring compute_driver = {create, record, query, elapsed, push, pop, exchange, vcuda_now_ns, compute_wake, query_stream, sleep_for};
