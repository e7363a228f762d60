/* What happens to streams: captures (captures.h), and their end. Who marks one away from its launches is waited for (in_flight.h). */
#include "in_flight.h"
#include "launch.h"

static CUresult begun(CUstream stream, CUresult error)
{
    captures_begun(stream, error == CUDA_SUCCESS);
    return error;
}

#define BEGIN(of, symbol, ...)                                                                                         \
    if (compute_free() || hook_nested())                                                                               \
        return real.symbol(__VA_ARGS__);                                                                               \
    captures_begin();                                                                                                  \
    in_flight_wait();                                                                                                       \
    return begun(of, DRIVER(symbol, __VA_ARGS__));

CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(stream, cuStreamBeginCapture, stream)
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(own_stream(stream), cuStreamBeginCapture_ptsz, stream)
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(stream, cuStreamBeginCapture_v2, stream, mode)
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(own_stream(stream), cuStreamBeginCapture_v2_ptsz, stream, mode)
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count,
                                     CUstreamCaptureMode mode)
{
    BEGIN(stream, cuStreamBeginCaptureToGraph, stream, graph, dependencies, data, count, mode)
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data,
                                          size_t count, CUstreamCaptureMode mode)
{
    BEGIN(own_stream(stream), cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, data, count, mode)
}

CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(stream, cuStreamBeginRecaptureToGraph, stream, mode, graph, callback, data)
}

CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(own_stream(stream), cuStreamBeginRecaptureToGraph_ptsz, stream, mode, graph, callback, data)
}

CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *parameters)
{
    BEGIN(stream, cuStreamBeginCaptureToCig, stream, parameters)
}

CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams *parameters)
{
    BEGIN(own_stream(stream), cuStreamBeginCaptureToCig_ptsz, stream, parameters)
}

/* These leave the capture as it is, or there was none. */
static bool is_still_captured(CUresult error)
{
    return error == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD || error == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ||
           error == CUDA_ERROR_ILLEGAL_STATE || error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_HANDLE ||
           error == CUDA_ERROR_INVALID_CONTEXT || error == CUDA_ERROR_NOT_FOUND;
}

static CUresult ended(CUstream stream, CUresult error)
{
    if (!hook_nested() && !is_still_captured(error))
        captures_end(stream);
    return error;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(stream, DRIVER(cuStreamEndCapture, stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return ended(own_stream(stream), DRIVER(cuStreamEndCapture_ptsz, stream, graph));
}

CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    return ended(stream, DRIVER(cuStreamEndCaptureToCig, stream));
}

CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream)
{
    return ended(own_stream(stream), DRIVER(cuStreamEndCaptureToCig_ptsz, stream));
}

/* ---- the end of a stream, and of a capture that it was the origin of ---- */

static void end(CUstream stream)
{
    if (stream == NULL || hook_nested())
        return;
    atomic_fetch_add(&compute_streams_ended, 1);
    in_flight_wait_stream(stream);
    if (atomic_load(&compute_captures) != 0)
        captures_end(stream);
}

CUresult cuStreamDestroy(CUstream stream)
{
    end(stream);
    return DRIVER(cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    end(stream);
    return DRIVER(cuStreamDestroy_v2, stream);
}
