/* See capture.h and capture_state.h. The entry points are in capture_calls.c. */
#include "capture_internal.h"

#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "lock.h"
#include "memory.h"

_Atomic unsigned captures_going;
struct capture *captures;

static _Atomic uint64_t violations;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* For tests: how many calls of this process failed because a capture forbade them. */
__attribute__((visibility("default"))) uint64_t vcuda_emulator_capture_violations(void);

uint64_t vcuda_emulator_capture_violations(void)
{
    return atomic_load(&violations);
}

CUresult capture_fail(struct capture *capture, CUresult error)
{
    if (capture != NULL)
        capture->invalid = true;
    atomic_fetch_add(&violations, 1);
    return error;
}

CUstreamCaptureStatus capture_of(const struct stream *stream)
{
    const struct capture *capture = stream->capture;
    return capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE
           : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/* A capture that the legacy stream of the context would depend on. */
struct capture *capture_of_blocking(const struct context *context)
{
    for (const struct stream *at = context->streams; at != NULL; at = at->next) {
        if (at->capture != NULL && stream_is_blocking(at))
            return at->capture;
    }
    return NULL;
}

static CUresult forbid_legacy(const struct context *context)
{
    struct capture *capture = capture_is_possible() ? capture_of_blocking(context) : NULL;
    return capture == NULL ? CUDA_SUCCESS : capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

bool capture_takes(struct stream *stream, CUresult *error)
{
    *error = CUDA_SUCCESS;
    if (!capture_is_possible())
        return false;
    if (stream->capture != NULL) {
        if (stream->capture->invalid)
            *error = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    if (stream->role == STREAM_LEGACY)
        *error = forbid_legacy(stream->context);
    return *error != CUDA_SUCCESS;
}

CUresult capture_forbids(struct stream *stream)
{
    CUresult error = CUDA_SUCCESS;
    if (!capture_is_possible())
        return CUDA_SUCCESS;
    driver_lock();
    if (stream->capture != NULL)
        error = capture_fail(stream->capture, stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    else if (stream->role == STREAM_LEGACY)
        error = forbid_legacy(stream->context);
    driver_unlock();
    return error;
}

CUresult capture_forbids_legacy(struct context *context)
{
    if (!capture_is_possible())
        return CUDA_SUCCESS;
    driver_lock();
    CUresult error = forbid_legacy(context);
    driver_unlock();
    return error;
}

CUresult capture_forbids_context(const struct context *context)
{
    CUresult error = CUDA_SUCCESS;
    if (!capture_is_possible())
        return CUDA_SUCCESS;
    driver_lock();
    for (const struct stream *at = context->streams; at != NULL; at = at->next) {
        if (at->capture != NULL)
            error = capture_fail(at->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    driver_unlock();
    return error;
}

CUresult capture_forbids_event(const struct event *event)
{
    return event->capture_id == 0 ? CUDA_SUCCESS : capture_fail(capture_by_id(event->capture_id), CUDA_ERROR_CAPTURED_EVENT);
}

/* "If the local thread has an ongoing capture sequence that was not initiated with RELAXED, or another thread one that was initiated with GLOBAL ..." */
static bool conflicts(const struct capture *capture, uint64_t thread)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (capture->thread == thread)
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult unsafe_call(void)
{
    CUresult error = CUDA_SUCCESS;
    if (!capture_is_possible())
        return CUDA_SUCCESS;
    driver_lock();
    for (struct capture *at = captures; at != NULL; at = at->next) {
        if (!conflicts(at, thread_number()))
            continue;
        at->invalid = true;
        error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (error != CUDA_SUCCESS)
        atomic_fetch_add(&violations, 1);
    driver_unlock();
    return error;
}

ENTRY(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *mode)
{
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

struct capture *capture_by_id(uint64_t id)
{
    for (struct capture *at = captures; at != NULL; at = at->next) {
        if (at->id == id)
            return at;
    }
    return NULL;
}

bool capture_set_follows(struct stream *stream, struct node *const *nodes, size_t count)
{
    struct node **copy = calloc(count == 0 ? 1 : count, sizeof *copy);
    if (copy == NULL)
        return false;
    if (count > 0)
        memcpy(copy, nodes, count * sizeof *copy);
    free(stream->follows);
    stream->follows = copy;
    stream->follow_count = count;
    return true;
}

/* A node at the end of what the stream captured. */
static struct node *add_node(struct stream *stream, CUgraphNodeType type)
{
    struct node *node = node_make(stream->capture->graph, type, stream->follows, stream->follow_count);
    if (node != NULL && !capture_set_follows(stream, &node, 1)) {
        node_end(node);
        return NULL;
    }
    return node;
}

CUresult capture_kernel(struct stream *stream, const struct launch *launch, const struct work *work)
{
    struct node *node = add_node(stream, CU_GRAPH_NODE_TYPE_KERNEL);
    return node != NULL && node_set_kernel(node, launch, work) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_host(struct stream *stream, CUhostFn function, void *data)
{
    struct node *node = add_node(stream, CU_GRAPH_NODE_TYPE_HOST);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->function = function;
    node->data = data;
    return CUDA_SUCCESS;
}

CUresult capture_child(struct stream *stream, const struct graph *graph)
{
    struct node *node = add_node(stream, CU_GRAPH_NODE_TYPE_GRAPH);
    return node != NULL && (node->child = graph_clone(graph)) != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_memory_node(struct stream *stream, CUgraphNodeType type, const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    CUresult error;
    driver_lock();
    if (!capture_takes(stream, &error))
        error = CUDA_ERROR_ILLEGAL_STATE;
    struct node *node = error == CUDA_SUCCESS ? add_node(stream, type) : NULL;
    if (node != NULL && !(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? node_set_allocation(node, params) : node_set_memory(node, params->dptr)))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    driver_unlock();
    return error == CUDA_SUCCESS && node == NULL ? CUDA_ERROR_OUT_OF_MEMORY : error;
}

CUresult capture_memory_alloc(struct stream *stream, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    CUdeviceptr again[GRAPH_ADDRESSES];
    bool is_new = true;
    driver_lock();
    size_t count = stream->capture == NULL ? 0
                                           : graph_free_addresses(stream->capture->graph, stream->follows, stream->follow_count, again,
                                                                  GRAPH_ADDRESSES);
    driver_unlock();
    CUresult error = graph_memory_reserve(params, again, count, &is_new);
    if (error != CUDA_SUCCESS)
        return error;
    error = add_memory_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params);
    if (error != CUDA_SUCCESS && is_new)
        graph_memory_forget(params->dptr);
    return error;
}

CUresult capture_memory_free(struct stream *stream, CUdeviceptr pointer)
{
    return add_memory_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &(CUDA_MEM_ALLOC_NODE_PARAMS){.dptr = pointer});
}

CUresult capture_action(struct stream *stream, const struct graph_action *action)
{
    CUresult error;
    driver_lock();
    if (capture_takes(stream, &error) && error == CUDA_SUCCESS) {
        struct node *node = add_node(stream, action->type);
        if (node != NULL)
            node->action = *action;
        else
            error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    return error;
}

static CUresult external_node(struct stream *stream, struct event *event, CUgraphNodeType type)
{
    struct node *node = add_node(stream, type);
    if (node == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->event = event;
    event_hold(event);
    return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event, unsigned flags)
{
    if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0)
        return external_node(stream, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    struct node **copy = calloc(stream->follow_count + 1, sizeof *copy);
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stream->follow_count > 0)
        memcpy(copy, stream->follows, stream->follow_count * sizeof *copy);
    free(event->captured);
    event->captured = copy;
    event->captured_count = stream->follow_count;
    event->capture_id = stream->capture->id;
    return CUDA_SUCCESS;
}

CUresult capture_wait(struct stream *stream, struct event *event, unsigned flags)
{
    if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0)
        return external_node(stream, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    return event->recorded == 0 ? CUDA_SUCCESS : capture_fail(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

static bool add_follow(struct stream *stream, struct node *node)
{
    for (size_t i = 0; i < stream->follow_count; i++) {
        if (stream->follows[i] == node)
            return true;
    }
    struct node **grown = realloc(stream->follows, (stream->follow_count + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    grown[stream->follow_count++] = node;
    stream->follows = grown;
    return true;
}

CUresult capture_join(struct stream *stream, struct event *event)
{
    struct capture *capture = capture_by_id(event->capture_id);
    if (capture == NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (capture->invalid || (stream->capture != NULL && stream->capture->invalid))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->role == STREAM_LEGACY)
        return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (stream->capture != NULL && stream->capture != capture) {
        stream->capture->invalid = true;
        return capture_fail(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    bool done = true;
    if (stream->capture == NULL) {
        stream->capture = capture;
        stream->follow_count = 0;
    }
    for (size_t i = 0; i < event->captured_count && done; i++)
        done = add_follow(stream, event->captured[i]);
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void capture_leave(struct stream *stream)
{
    if (stream->capture == NULL)
        return;
    capture_fail(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream->capture->origin == stream)
        capture_finish(stream->capture, true);
    stream->capture = NULL;
}
