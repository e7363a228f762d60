/* The entry points of stream capture ("CUDA Driver API, Stream Management"). */
#include <stdlib.h>

#include "capture_internal.h"
#include "entry.h"
#include "graph_address.h"
#include "lock.h"

static uint64_t last_id;

static CUresult begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *given, struct node *const *follows, size_t count)
{
    if (stream->role == STREAM_LEGACY)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = calloc(1, sizeof *capture);
    struct graph *graph = given != NULL ? given : graph_make();
    if (capture == NULL || graph == NULL || !capture_set_follows(stream, follows, count)) {
        if (given == NULL && graph != NULL)
            graph_end(graph);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *capture = (struct capture){++last_id, mode, thread_number(), stream, graph, given != NULL, false, captures};
    captures = capture;
    stream->capture = capture;
    atomic_fetch_add(&captures_going, 1);
    return CUDA_SUCCESS;
}

static CUresult begin_on(CUstream handle, CUstreamCaptureMode mode, bool per_thread)
{
    struct stream *stream;
    CUresult error = stream_of(handle, per_thread, &stream);
    if (error == CUDA_SUCCESS && (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        error = CUDA_ERROR_INVALID_VALUE;
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    error = begin(stream, mode, NULL, NULL, 0);
    driver_unlock();
    return error;
}

ENTRY(cuStreamBeginCapture)(CUstream stream)
{
    return begin_on(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, false);
}

ENTRY(cuStreamBeginCapture_ptsz)(CUstream stream)
{
    return begin_on(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, true);
}

ENTRY(cuStreamBeginCapture_v2)(CUstream stream, CUstreamCaptureMode mode)
{
    return begin_on(stream, mode, false);
}

ENTRY(cuStreamBeginCapture_v2_ptsz)(CUstream stream, CUstreamCaptureMode mode)
{
    return begin_on(stream, mode, true);
}

static CUresult begin_in(CUstream handle, CUgraph graph_handle, const CUgraphNode *dependencies, size_t count, CUstreamCaptureMode mode, bool per_thread)
{
    struct stream *stream;
    struct graph *graph = graph_of(graph_handle);
    CUresult error = stream_of(handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    if (graph == NULL || !nodes_valid(graph, (struct node *const *)dependencies, count) || (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        error = CUDA_ERROR_INVALID_VALUE;
    else
        error = begin(stream, mode, graph, (struct node *const *)dependencies, count);
    driver_unlock();
    return error;
}

ENTRY(cuStreamBeginCaptureToGraph)(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependency_data,
                                   size_t num_dependencies, CUstreamCaptureMode mode)
{
    (void)dependency_data; /* all edges are full dependencies here */
    return begin_in(stream, graph, dependencies, num_dependencies, mode, false);
}

ENTRY(cuStreamBeginCaptureToGraph_ptsz)(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependency_data,
                                        size_t num_dependencies, CUstreamCaptureMode mode)
{
    (void)dependency_data;
    return begin_in(stream, graph, dependencies, num_dependencies, mode, true);
}

void capture_finish(struct capture *capture, bool discard)
{
    for (struct context *context = contexts; context != NULL; context = context->next) {
        for (struct stream *at = context->streams; at != NULL; at = at->next) {
            if (at->capture != capture)
                continue;
            at->capture = NULL;
            free(at->follows);
            at->follows = NULL;
            at->follow_count = 0;
        }
    }
    for (struct capture **at = &captures; *at != NULL; at = &(*at)->next) {
        if (*at == capture) {
            *at = capture->next;
            break;
        }
    }
    if (discard && !capture->given)
        graph_end(capture->graph);
    atomic_fetch_sub(&captures_going, 1);
    free(capture);
}

static bool is_joined(const struct stream *fork, const struct stream *origin)
{
    for (size_t i = 0; i < fork->follow_count; i++) {
        bool joined = false;
        for (size_t other = 0; other < origin->follow_count && !joined; other++)
            joined = node_is_before(fork->follows[i], origin->follows[other]);
        if (!joined)
            return false;
    }
    return true;
}

static bool all_joined(const struct capture *capture)
{
    for (const struct context *context = contexts; context != NULL; context = context->next) {
        for (const struct stream *at = context->streams; at != NULL; at = at->next) {
            if (at->capture == capture && at != capture->origin && !is_joined(at, capture->origin))
                return false;
        }
    }
    return true;
}

static CUresult end(struct stream *stream, CUgraph *graph)
{
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_number())
        return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    CUresult error = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                     : all_joined(capture) ? CUDA_SUCCESS
                                           : capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    *graph = error == CUDA_SUCCESS ? (CUgraph)capture->graph : NULL;
    capture_finish(capture, error != CUDA_SUCCESS);
    return error;
}

static CUresult end_on(CUstream handle, CUgraph *graph, bool per_thread)
{
    struct stream *stream;
    CUresult error = graph == NULL ? CUDA_ERROR_INVALID_VALUE : stream_of(handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    error = end(stream, graph);
    driver_unlock();
    graph_address_sweep();
    return error;
}

ENTRY(cuStreamEndCapture)(CUstream stream, CUgraph *graph)
{
    return end_on(stream, graph, false);
}

ENTRY(cuStreamEndCapture_ptsz)(CUstream stream, CUgraph *graph)
{
    return end_on(stream, graph, true);
}

struct capture_info {
    CUstreamCaptureStatus *status;
    uint64_t *id;
    CUgraph *graph;
    const CUgraphNode **dependencies;
    const CUgraphEdgeData **edges;
    size_t *count;
};

/* The legacy stream cannot be asked while a blocking one is captured; that does no harm. */
static CUresult inform(const struct stream *stream, const struct capture_info *out)
{
    if (stream->role == STREAM_LEGACY && capture_of_blocking(stream->context) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *out->status = capture_of(stream);
    if (*out->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (out->id != NULL)
        *out->id = stream->capture->id;
    if (out->graph != NULL)
        *out->graph = (CUgraph)stream->capture->graph;
    if (out->dependencies != NULL)
        *out->dependencies = (const CUgraphNode *)stream->follows;
    if (out->edges != NULL)
        *out->edges = NULL;
    if (out->count != NULL)
        *out->count = stream->follow_count;
    return CUDA_SUCCESS;
}

static CUresult inform_on(CUstream handle, bool per_thread, struct capture_info out)
{
    struct stream *stream;
    CUresult error = out.status == NULL ? CUDA_ERROR_INVALID_VALUE : stream_of(handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    error = inform(stream, &out);
    driver_unlock();
    return error;
}

ENTRY(cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus *capture_status)
{
    return inform_on(stream, false, (struct capture_info){capture_status});
}

ENTRY(cuStreamIsCapturing_ptsz)(CUstream stream, CUstreamCaptureStatus *capture_status)
{
    return inform_on(stream, true, (struct capture_info){capture_status});
}

ENTRY(cuStreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus *capture_status_out, uint64_t *id_out)
{
    return inform_on(stream, false, (struct capture_info){capture_status_out, id_out});
}

ENTRY(cuStreamGetCaptureInfo_ptsz)(CUstream stream, CUstreamCaptureStatus *capture_status_out, uint64_t *id_out)
{
    return inform_on(stream, true, (struct capture_info){capture_status_out, id_out});
}

ENTRY(cuStreamGetCaptureInfo_v2)(CUstream stream, CUstreamCaptureStatus *capture_status_out, uint64_t *id_out, CUgraph *graph_out,
                                 const CUgraphNode **dependencies_out, size_t *num_dependencies_out)
{
    return inform_on(stream, false, (struct capture_info){capture_status_out, id_out, graph_out, dependencies_out, NULL, num_dependencies_out});
}

ENTRY(cuStreamGetCaptureInfo_v2_ptsz)(CUstream stream, CUstreamCaptureStatus *capture_status_out, uint64_t *id_out, CUgraph *graph_out,
                                      const CUgraphNode **dependencies_out, size_t *num_dependencies_out)
{
    return inform_on(stream, true, (struct capture_info){capture_status_out, id_out, graph_out, dependencies_out, NULL, num_dependencies_out});
}

ENTRY(cuStreamGetCaptureInfo_v3)(CUstream stream, CUstreamCaptureStatus *capture_status_out, uint64_t *id_out, CUgraph *graph_out,
                                 const CUgraphNode **dependencies_out, const CUgraphEdgeData **edge_data_out, size_t *num_dependencies_out)
{
    struct capture_info out = {capture_status_out, id_out, graph_out, dependencies_out, edge_data_out, num_dependencies_out};
    return inform_on(stream, false, out);
}

ENTRY(cuStreamGetCaptureInfo_v3_ptsz)(CUstream stream, CUstreamCaptureStatus *capture_status_out, uint64_t *id_out, CUgraph *graph_out,
                                      const CUgraphNode **dependencies_out, const CUgraphEdgeData **edge_data_out, size_t *num_dependencies_out)
{
    struct capture_info out = {capture_status_out, id_out, graph_out, dependencies_out, edge_data_out, num_dependencies_out};
    return inform_on(stream, true, out);
}
