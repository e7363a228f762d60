/* See timebase.h. */
#include "timebase.h"

#include <stdlib.h>

#define ORIGIN_AGE_NS INT64_C(1000000000)

void timebase_init(struct timebase *timebase, const struct measuring *driver, CUcontext context)
{
    *timebase = (struct timebase){.driver = driver, .context = context};
    pthread_mutex_init(&timebase->lock, NULL);
}

CUstreamCaptureMode measuring_relax(const struct measuring *driver)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return driver->exchange_capture_mode(&mode) == CUDA_SUCCESS ? mode : CU_STREAM_CAPTURE_MODE_RELAXED;
}

void measuring_restore(const struct measuring *driver, CUstreamCaptureMode mode)
{
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        driver->exchange_capture_mode(&mode);
}

/* ---- the pool ---- */

static struct mark *make(struct timebase *timebase)
{
    const struct measuring *driver = timebase->driver;
    CUcontext context;
    struct mark *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    CUstreamCaptureMode mode = measuring_relax(driver);
    CUresult error = driver->context_push(timebase->context);
    if (error == CUDA_SUCCESS) {
        error = driver->event_create(&made->event, CU_EVENT_DEFAULT);
        driver->context_pop(&context);
    }
    measuring_restore(driver, mode);
    made->timebase = timebase;
    if (error == CUDA_SUCCESS)
        return made;
    free(made);
    return NULL;
}

static struct mark *take(struct timebase *timebase)
{
    pthread_mutex_lock(&timebase->lock);
    struct mark *taken = timebase->free;
    if (taken != NULL)
        timebase->free = taken->next;
    pthread_mutex_unlock(&timebase->lock);
    return taken != NULL ? taken : make(timebase);
}

struct mark *mark_hold(struct mark *mark)
{
    if (mark != NULL)
        atomic_fetch_add_explicit(&mark->holders, 1, memory_order_relaxed);
    return mark;
}

void mark_drop(struct mark *mark)
{
    if (mark == NULL || atomic_fetch_sub_explicit(&mark->holders, 1, memory_order_acq_rel) != 1)
        return;
    struct timebase *timebase = mark->timebase;
    pthread_mutex_lock(&timebase->lock);
    mark->next = timebase->free;
    timebase->free = mark;
    pthread_mutex_unlock(&timebase->lock);
}

static bool is_of_capture(CUresult error)
{
    return error >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && error <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

struct mark *mark_record(struct timebase *timebase, CUstream stream, bool *refused)
{
    *refused = false;
    if (atomic_load(&timebase->gone))
        return NULL;
    struct mark *mark = take(timebase);
    *refused = mark == NULL && !atomic_load(&timebase->gone);
    if (mark == NULL)
        return NULL;
    atomic_store_explicit(&mark->holders, 1, memory_order_relaxed);
    atomic_store_explicit(&mark->reached, false, memory_order_relaxed);
    mark->asked_ns = timebase->driver->now();
    CUresult error = timebase->driver->event_record(mark->event, stream);
    mark->told_ns = timebase->driver->now();
    if (error == CUDA_SUCCESS)
        return mark;
    *refused = !is_of_capture(error) && !atomic_load(&timebase->gone);
    mark_drop(mark);
    return NULL;
}

/* ---- the clock ---- */

static void move_origin(struct timebase *timebase, struct mark *mark)
{
    struct mark *before = timebase->origin;
    timebase->origin = mark_hold(mark);
    mark_drop(before);
}

/* After it was asked for, before it was seen. */
static void tie(struct timebase *timebase, const struct mark *mark, uint64_t seen_ns)
{
    int64_t least = (int64_t)mark->asked_ns - mark->gpu_ns, most = (int64_t)seen_ns - mark->gpu_ns;
    if (!timebase->tied || timebase->offset_ns < least)
        timebase->offset_ns = least;
    if (timebase->offset_ns > most)
        timebase->offset_ns = most;
    timebase->tied = true;
}

static bool place(struct timebase *timebase, struct mark *mark)
{
    float elapsed = 0;
    if (timebase->origin == NULL)
        mark->gpu_ns = 0;
    else if (timebase->driver->event_elapsed(&elapsed, timebase->origin->event, mark->event) != CUDA_SUCCESS)
        return false;
    else
        mark->gpu_ns = timebase->origin->gpu_ns + (int64_t)((double)elapsed * 1e6);
    return true;
}

enum mark_state mark_look(struct mark *mark)
{
    struct timebase *timebase = mark->timebase;
    if (mark_is_reached(mark))
        return MARK_REACHED;
    if (atomic_load_explicit(&timebase->gone, memory_order_acquire))
        return MARK_LOST;
    CUresult state = timebase->driver->event_query(mark->event);
    if (state == CUDA_ERROR_NOT_READY)
        return MARK_AHEAD;
    if (state != CUDA_SUCCESS || !place(timebase, mark))
        return MARK_LOST;
    atomic_store_explicit(&mark->reached, true, memory_order_relaxed);
    tie(timebase, mark, timebase->driver->now());
    if (timebase->origin == NULL || mark->gpu_ns - timebase->origin->gpu_ns > ORIGIN_AGE_NS)
        move_origin(timebase, mark);
    return MARK_REACHED;
}
