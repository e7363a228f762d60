/* See event.h. The entry points are in event_calls.c. */
#include "event.h"

#include <stdlib.h>

#include "lock.h"
#include "queue.h"
#include "session.h"

static struct event *all;

struct event *event_of(CUevent handle)
{
    struct event *event = (struct event *)handle;
    bool is = object_is(handle, OBJECT_EVENT) && !event->ended;
    stale_handles += !is;
    return is ? event : NULL;
}

struct event *event_make(struct context *context, unsigned flags)
{
    struct event *event = object_begin(OBJECT_EVENT, sizeof *event);
    if (event == NULL)
        return NULL;
    event->context = context;
    event->gpu = context->gpu;
    event->flags = flags;
    driver_lock();
    event->next = all;
    event->link = &all;
    if (all != NULL)
        all->link = &event->next;
    all = event;
    driver_unlock();
    return event;
}

static void unlist(struct event *event)
{
    struct gpu *gpu = event->gpu;
    if (!event->listed)
        return;
    *(event->earlier_timed == NULL ? &gpu->timed : &event->earlier_timed->next_timed) = event->next_timed;
    *(event->next_timed == NULL ? &gpu->timed_last : &event->next_timed->earlier_timed) = event->earlier_timed;
    event->listed = false;
}

/* Nearly always at the end: V of new records grows. */
static void list(struct event *event)
{
    struct gpu *gpu = event->gpu;
    struct event *before = gpu->timed_last;
    while (before != NULL && before->v > event->v)
        before = before->earlier_timed;
    event->earlier_timed = before;
    event->next_timed = before == NULL ? gpu->timed : before->next_timed;
    *(before == NULL ? &gpu->timed : &before->next_timed) = event;
    *(event->next_timed == NULL ? &gpu->timed_last : &event->next_timed->earlier_timed) = event;
    event->listed = true;
}

void event_end(struct event *event)
{
    event->ended = true;
    if (event->holds > 0)
        return;
    unlist(event);
    event_unshare(event);
    *event->link = event->next;
    if (event->next != NULL)
        event->next->link = event->link;
    free(event->captured);
    event->captured = NULL;
    object_end(event);
}

void events_end(struct context *context)
{
    for (struct event *event = all, *next; event != NULL; event = next) {
        next = event->next;
        if (event->context == context)
            event_end(event);
    }
}

void event_hold(struct event *event)
{
    event->holds++;
}

void event_let_go(struct event *event)
{
    if (--event->holds == 0 && event->ended)
        event_end(event);
}

void event_place(struct event *event, uint64_t generation, struct gpu *gpu, uint64_t v, uint64_t recorded_at)
{
    if (generation < event->placed)
        return;
    unlist(event);
    event->placed = generation;
    event->gpu = gpu;
    event->v = v;
    event->at = recorded_at;
    event->time = 0;
    event_push(event);
    if ((event->flags & CU_EVENT_DISABLE_TIMING) == 0)
        list(event);
}

CUresult event_record(struct event *event, struct stream *stream)
{
    struct item item = {.kind = ITEM_RECORD, .event = event, .generation = event->recorded + 1};
    if ((event->flags & CU_EVENT_DISABLE_TIMING) == 0)
        item.recorded_at = clock_ns();
    event->recorded++;
    event->capture_id = 0;
    return stream_push(stream, &item) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult event_precede(struct event *event, struct stream *stream)
{
    event_pull(event);
    if (event->recorded == 0)
        return CUDA_SUCCESS;
    struct item item = {.kind = ITEM_WAIT, .event = event, .generation = event->recorded};
    return stream_push(stream, &item) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool event_is_over(struct event *event, uint64_t generation)
{
    event_pull(event);
    return event->placed >= generation && gpu_passed(event->gpu, event->v);
}

void event_settle(struct gpu *gpu)
{
    for (struct event *event = gpu->timed; event != NULL && event->v <= gpu->v; event = gpu->timed) {
        unlist(event);
        event->time = gpu_when(gpu, event->v);
        if (event->time < event->at)
            event->time = event->at;
    }
}
