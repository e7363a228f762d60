/* Placing work in V, and the entry of work into a stream. See stream.h and stream_state.h. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#include "capture_internal.h"
#include "event.h"
#include "lock.h"
#include "queue.h"
#include "session.h"

static _Atomic uint64_t last_id;
static _Atomic uint64_t last_thread;

static uint64_t later(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

uint64_t stream_earliest(const struct stream *stream)
{
    if (stream->role == STREAM_LEGACY)
        return later(stream->tail, stream->context->blocking_tail);
    if (stream_is_blocking(stream) && stream->context->legacy != NULL)
        return later(stream->tail, stream->context->legacy->tail);
    return stream->tail;
}

void stream_reach(struct stream *stream, uint64_t end)
{
    struct context *context = stream->context;
    stream->tail = later(stream->tail, end);
    context->tail = later(context->tail, end);
    if (stream_is_blocking(stream))
        context->blocking_tail = later(context->blocking_tail, end);
}

uint64_t stream_place(struct stream *stream, const struct work *work)
{
    struct gpu *gpu = stream->gpu;
    uint64_t earliest = stream_earliest(stream), end = earliest;
    if (work->kind == WORK_COPY) {
        end = gpu->copy_tail = gpu_run(gpu, later(earliest, gpu->copy_tail), work->cost_ns);
    } else if (work->kind == WORK_KERNEL && work->wide) {
        end = gpu->wide_tail = gpu_run(gpu, later(earliest, gpu->wide_tail), work->cost_ns);
    } else if (work->kind == WORK_KERNEL) {
        end = gpu_run(gpu, earliest, work->cost_ns);
    }
    stream_reach(stream, end);
    return end;
}

/* A queue has an end: a thread that launches further ahead waits. */
void stream_hold_up(struct stream *stream)
{
    while (stream->launches >= LAUNCHES_AHEAD && !gpu_passed(stream->gpu, stream->ends[stream->launches % LAUNCHES_AHEAD]))
        gpu_wait(stream->gpu, stream->ends[stream->launches % LAUNCHES_AHEAD]);
}

void stream_count_launch(struct stream *stream, uint64_t end)
{
    stream->ends[stream->launches++ % LAUNCHES_AHEAD] = end;
}

CUresult stream_enqueue(struct stream *stream, const struct work *work, uint64_t *end)
{
    uint64_t reached = STREAM_UNPLACED;
    CUresult error = CUDA_SUCCESS;
    driver_lock();
    if (work->kind == WORK_KERNEL)
        stream_hold_up(stream);
    if (!queue_holds(stream) && work->exchange == NULL) {
        reached = stream_place(stream, work);
        if (work->kind == WORK_KERNEL)
            stream_count_launch(stream, reached);
    } else if (!stream_push(stream, &(struct item){.kind = ITEM_WORK, .work = *work})) {
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    if (end != NULL)
        *end = reached;
    return error;
}

void stream_finish(struct stream *stream)
{
    queue_settle(stream);
    gpu_wait(stream->gpu, stream_earliest(stream));
}

bool stream_is_done(struct stream *stream)
{
    return !queue_holds(stream) && gpu_passed(stream->gpu, stream_earliest(stream));
}

CUresult stream_wait(struct stream *stream)
{
    driver_lock();
    stream_finish(stream);
    driver_unlock();
    return gpu_is_lost(stream->gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

bool stream_passed(struct stream *stream, uint64_t end)
{
    driver_lock();
    bool passed = end == STREAM_UNPLACED ? stream_is_done(stream) : gpu_passed(stream->gpu, end);
    driver_unlock();
    return passed;
}

struct context *stream_context(const struct stream *stream)
{
    return stream->context;
}

struct stream *stream_make(struct context *context, enum stream_role role, unsigned flags, int priority)
{
    struct stream *stream = object_begin(OBJECT_STREAM, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->context = context;
    stream->gpu = context->gpu;
    stream->role = role;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = atomic_fetch_add(&last_id, 1) + 3; /* 1 and 2 are the default streams' */
    stream->last = &stream->first;
    stream->next = context->streams;
    context->streams = stream;
    return stream;
}

/* Work that is queued still runs; the stream goes with the last of it. */
void stream_end(struct stream *stream)
{
    stream->ended = true;
    if (stream->first != NULL)
        return;
    for (struct stream **at = &stream->context->streams; *at != NULL; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    free(stream->follows);
    object_end(stream);
}

/* Never used again. */
uint64_t thread_number(void)
{
    static __thread uint64_t number;
    if (number == 0)
        number = atomic_fetch_add(&last_thread, 1) + 1;
    return number;
}

static struct stream *find_own(struct context *context)
{
    uint64_t thread = thread_number();
    for (struct stream *at = context->streams; at != NULL; at = at->next) {
        if (at->role == STREAM_OF_THREAD && at->thread == thread)
            return at;
    }
    struct stream *made = stream_make(context, STREAM_OF_THREAD, 0, 0);
    if (made != NULL)
        made->thread = thread;
    return made;
}

static CUresult default_stream(bool per_thread, struct stream **out)
{
    struct context *context;
    CUresult error = context_require_own(&context);
    if (error == CUDA_SUCCESS && per_thread && context->root != context)
        error = CUDA_ERROR_INVALID_HANDLE;
    if (error != CUDA_SUCCESS)
        return error;
    *out = context->legacy;
    if (!per_thread)
        return CUDA_SUCCESS;
    driver_lock();
    *out = find_own(context);
    driver_unlock();
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult stream_of(CUstream handle, bool per_thread, struct stream **out)
{
    if (handle == NULL)
        return default_stream(per_thread, out);
    if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return default_stream(handle == CU_STREAM_PER_THREAD, out);
    *out = (struct stream *)handle;
    bool is = object_is(handle, OBJECT_STREAM) && !(*out)->ended;
    if (!is || !(*out)->context->alive)
        stale_handles++;
    if (!is)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!(*out)->context->alive)
        return (*out)->context->root != (*out)->context ? CUDA_ERROR_STREAM_DETACHED : CUDA_ERROR_INVALID_HANDLE;
    return gpu_is_lost((*out)->gpu) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

struct stream_point stream_point(struct stream *stream)
{
    driver_lock();
    bool held = queue_holds(stream);
    struct stream_point point = {stream, held ? STREAM_UNPLACED : stream_earliest(stream), held ? stream_ticket() : 0};
    driver_unlock();
    return point;
}

bool stream_point_passed(const struct stream_point *point)
{
    driver_lock();
    bool passed = queue_point_is_placed(point) &&
                  gpu_passed(point->stream->gpu, point->end == STREAM_UNPLACED ? point->stream->tail : point->end);
    driver_unlock();
    return passed;
}

void stream_follow(struct stream *stream, const struct stream_point *point)
{
    driver_lock();
    stream_push(stream, &(struct item){.kind = ITEM_POINT, .point = *point});
    driver_unlock();
}

/* Measured orders of magnitude: a few microseconds for any, then PCIe 4 x16, and HBM read and written. */
uint64_t copy_cost(enum copy_route route, uint64_t bytes)
{
    static const struct {
        uint64_t start_ns, bytes_each_us;
    } routes[] = {
        [COPY_HOST_DEVICE] = {5000, 25000},
        [COPY_ON_DEVICE] = {2000, 1000000},
        [COPY_PEER] = {4000, 50000},
        [MEMSET] = {2000, 2000000},
    };
    return routes[route].start_ns + bytes / routes[route].bytes_each_us * 1000 + bytes % routes[route].bytes_each_us * 1000 / routes[route].bytes_each_us;
}
