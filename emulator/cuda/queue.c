/* See queue.h. */
#include "queue.h"

#include <stdlib.h>

#include "event.h"
#include "exchange.h"
#include "graph_place.h"
#include "lock.h"
#include "session.h"

#define PATIENCE_NS UINT64_C(100000000)
/* A kernel that waits is on the GPU for so long at a time. */
#define SPIN_NS UINT64_C(400000)

static uint64_t last_ticket;
static unsigned held_streams;   /* that have items */

uint64_t stream_ticket(void)
{
    return last_ticket;
}

static bool has_items_up_to(const struct stream *stream, uint64_t ticket)
{
    return stream->first != NULL && stream->first->ticket <= ticket;
}

/* Items up to `ticket` in the streams that this one is ordered behind by the legacy stream's rules. */
static bool waits_for_others(const struct stream *stream, uint64_t ticket)
{
    const struct context *context = stream->context;
    if (stream->role != STREAM_LEGACY)
        return stream_is_blocking(stream) && context->legacy != NULL && has_items_up_to(context->legacy, ticket);
    for (const struct stream *at = context->streams; at != NULL; at = at->next) {
        if (stream_is_blocking(at) && has_items_up_to(at, ticket))
            return true;
    }
    return false;
}

bool queue_holds(const struct stream *stream)
{
    return held_streams > 0 && (stream->first != NULL || waits_for_others(stream, UINT64_MAX));
}

bool queue_point_is_placed(const struct stream_point *point)
{
    return point->end != STREAM_UNPLACED || !has_items_up_to(point->stream, point->ticket);
}

static void expect(struct gpu *gpu, uint64_t v, uint64_t *wake)
{
    uint64_t at = gpu_expect(gpu, v);
    if (at < *wake)
        *wake = at;
}

/* The stream goes on behind V `v` of a GPU; on another GPU that has to be over first. */
static bool pass(struct stream *stream, struct gpu *gpu, uint64_t v, uint64_t *wake)
{
    if (gpu == stream->gpu) {
        stream_reach(stream, v);
        return true;
    }
    if (gpu_passed(gpu, v))
        return true;
    expect(gpu, v, wake);
    return false;
}

static bool pass_event(struct stream *stream, const struct item *item, uint64_t *wake)
{
    struct event *event = item->event;
    return event->placed >= item->generation && pass(stream, event->gpu, event->v, wake);
}

static bool pass_point(struct stream *stream, const struct stream_point *point, uint64_t *wake)
{
    return queue_point_is_placed(point) &&
           pass(stream, point->stream->gpu, point->end == STREAM_UNPLACED ? point->stream->tail : point->end, wake);
}

/* The others' kernels begin at a time that nobody knows: until then this one is at work, a little at a time. */
static bool pass_exchange(struct stream *stream, struct item *item, uint64_t *wake)
{
    uint64_t until = stream_earliest(stream), again = clock_ns() + SPIN_NS / 2;
    bool over = gpu_passed(stream->gpu, until);
    if (item->begun == 0 && !over) {
        expect(stream->gpu, until, wake);
        return false;
    }
    if (item->begun == 0)
        item->begun = exchange_begin(item->work.exchange, item->work.ranks);
    if (exchange_is_reached(item->work.exchange, item->begun)) {
        stream_place(stream, &item->work);
        return true;
    }
    if (over || until - stream->gpu->v < SPIN_NS / 2)
        stream_place(stream, &(struct work){.kind = WORK_KERNEL, .cost_ns = SPIN_NS});
    *wake = again < *wake ? again : *wake;
    return false;
}

/* True: the item is dealt with. */
static bool try_place(struct stream *stream, struct item *item, uint64_t *wake)
{
    switch (item->kind) {
    case ITEM_WORK:
        if (item->work.exchange != NULL)
            return pass_exchange(stream, item, wake);
        stream_place(stream, &item->work);
        return true;
    case ITEM_RECORD:
        event_place(item->event, item->generation, stream->gpu, stream_place(stream, &(struct work){.kind = WORK_MARKER}), item->recorded_at);
        return true;
    case ITEM_WAIT:
        return pass_event(stream, item, wake);
    case ITEM_STREAMS:
        return !waits_for_others(stream, item->ticket);
    case ITEM_GRAPH:
        graph_place(stream, item->exec, item->from, item->to);
        return true;
    case ITEM_POINT:
        return pass_point(stream, &item->point, wake);
    case ITEM_OPERATION:
        if (gpu_passed(stream->gpu, stream_earliest(stream)))
            return false;
        /* fall through */
    case ITEM_HOST:
        expect(stream->gpu, stream_earliest(stream), wake);
        return false;
    }
    return true;
}

static void hold(const struct item *item)
{
    if (item->event != NULL)
        event_hold(item->event);
    if (item->exec != NULL)
        exec_hold(item->exec);
}

static void let_go(const struct item *item)
{
    if (item->event != NULL)
        event_let_go(item->event);
    if (item->exec != NULL)
        exec_let_go(item->exec);
}

static bool append(struct stream *stream, const struct item *item)
{
    struct item *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return false;
    *copy = *item;
    copy->ticket = ++last_ticket;
    copy->next = NULL;
    held_streams += stream->first == NULL;
    *stream->last = copy;
    stream->last = &copy->next;
    hold(copy);
    host_wake();
    return true;
}

bool stream_push(struct stream *stream, const struct item *item)
{
    uint64_t wake = UINT64_MAX;
    if (stream->first == NULL && held_streams > 0 && waits_for_others(stream, UINT64_MAX) &&
        !append(stream, &(struct item){.kind = ITEM_STREAMS}))
        return false;
    struct item tried = *item;
    bool waits = item->kind == ITEM_HOST || item->kind == ITEM_OPERATION || item->work.exchange != NULL;
    if (stream->first == NULL && !waits && try_place(stream, &tried, &wake))
        return true;
    return append(stream, item);
}

void queue_pop(struct stream *stream)
{
    struct item *first = stream->first;
    stream->first = first->next;
    if (stream->first == NULL) {
        stream->last = &stream->first;
        held_streams--;
    }
    let_go(first);
    free(first);
}

/* What is placed late was recorded late. */
static void refresh(struct item *item)
{
    if (item->kind == ITEM_RECORD)
        item->recorded_at = clock_ns();
}

bool queue_progress(struct stream *stream, uint64_t *wake)
{
    bool moved = false;
    while (stream->first != NULL && !stream->running) {
        refresh(stream->first);
        if (!try_place(stream, stream->first, wake))
            break;
        queue_pop(stream);
        moved = true;
    }
    return moved;
}

void stream_drain(struct stream *stream, uint64_t ticket)
{
    while (has_items_up_to(stream, ticket))
        driver_wait(clock_ns() + PATIENCE_NS);
}

void queue_settle(struct stream *stream)
{
    uint64_t ticket = last_ticket;
    while (held_streams > 0 && (has_items_up_to(stream, ticket) || waits_for_others(stream, ticket)))
        driver_wait(clock_ns() + PATIENCE_NS);
}
