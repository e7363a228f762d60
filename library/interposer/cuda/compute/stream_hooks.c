/*
 * What happens to streams: captures, and their end.
 *
 * Captures are only counted, so that launches ask whether their stream is being captured while some stream is, and never otherwise.
 *
 * A count that is too high costs a question for each launch. One that is too low (a capture that was begun in a way we do not see) costs accuracy:
 * marks ask for themselves (process.c), and nothing of ours gets into a graph.
 */
#include "launch.h"

static CUresult begun(CUresult error)
{
    if (error != CUDA_SUCCESS)
        atomic_fetch_sub(&compute_captures, 1);
    return error;
}

static void count_capture(void)
{
    pthread_mutex_lock(&compute_streams_lock);
    atomic_fetch_add(&compute_captures, 1);
    pthread_mutex_unlock(&compute_streams_lock);
}

/* Counted before the driver hears of it: another thread may launch into the stream at once. */
#define BEGIN(symbol, ...)                                                                                             \
    if (hook_nested())                                                                                                 \
        return real.symbol(__VA_ARGS__);                                                                               \
    count_capture();                                                                                                   \
    return begun(DRIVER(symbol, __VA_ARGS__));

CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(cuStreamBeginCapture, stream)
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(cuStreamBeginCapture_ptsz, stream)
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2, stream, mode)
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2_ptsz, stream, mode)
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data, size_t count,
                                     CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph, stream, graph, dependencies, data, count, mode)
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *data,
                                          size_t count, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, data, count, mode)
}

/* These leave the capture as it is, or there was none. */
static bool is_still_captured(CUresult error)
{
    return error == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD || error == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED ||
           error == CUDA_ERROR_ILLEGAL_STATE || error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_HANDLE ||
           error == CUDA_ERROR_INVALID_CONTEXT || error == CUDA_ERROR_NOT_FOUND;
}

static CUresult ended(CUresult error)
{
    uint32_t count = atomic_load(&compute_captures);
    while (!hook_nested() && !is_still_captured(error) && count != 0 && !atomic_compare_exchange_weak(&compute_captures, &count, count - 1))
        ;
    return error;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(DRIVER(cuStreamEndCapture, stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return ended(DRIVER(cuStreamEndCapture_ptsz, stream, graph));
}

/* ---- the end of a stream ---- */

static void count_end(void)
{
    pthread_mutex_lock(&compute_streams_lock);
    atomic_fetch_add(&compute_streams_ended, 1);
    pthread_mutex_unlock(&compute_streams_lock);
}

CUresult cuStreamDestroy(CUstream stream)
{
    count_end();
    return DRIVER(cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    count_end();
    return DRIVER(cuStreamDestroy_v2, stream);
}
