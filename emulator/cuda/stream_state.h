/*
 * The inside of a stream: how far its work reaches in V, what waits in it for the host, whether it is being captured. Under driver_lock().
 *
 * Work gets its place in V as soon as it is queued (stream.c), unless something before it cannot be placed: a host function that has not run, an event
 * that has no place itself, another GPU. Then it waits as an item in the stream's queue (queue.c) until the host thread (host.c) gets to it.
 */
#ifndef VCUDA_EMULATOR_STREAM_STATE_H
#define VCUDA_EMULATOR_STREAM_STATE_H

#include "context_state.h"
#include "operation.h"
#include "stream.h"

enum { LAUNCHES_AHEAD = 1024 };     /* that a stream takes before it holds up who launches, as the real driver's queues */

struct event;
struct exec;
struct capture;
struct node;

enum stream_role { STREAM_EXPLICIT, STREAM_LEGACY, STREAM_OF_THREAD };

enum item_kind {
    ITEM_WORK,
    ITEM_RECORD,                /* an event */
    ITEM_WAIT,                  /* for an event, as it was recorded when the wait was queued */
    ITEM_HOST,                  /* a function of the application */
    ITEM_OPERATION,             /* of memory: the host thread performs it too */
    ITEM_STREAMS,               /* the legacy stream and the blocking ones wait for what is queued in each other */
    ITEM_GRAPH,                 /* a stretch of a graph without host functions */
    ITEM_POINT,                 /* a point in another stream */
};

struct item {
    enum item_kind kind;
    uint64_t ticket;            /* counts items of the whole process */
    struct work work;
    struct event *event;
    uint64_t generation;        /* of the event's record */
    uint64_t recorded_at;
    CUhostFn function;
    void *data;
    struct operation operation;
    uint64_t look_at;           /* when to see again whether its wait is over */
    struct exec *exec;
    unsigned from, to;          /* nodes of it */
    struct stream_point point;
    uint64_t begun;             /* a kernel that waits: how many must have begun; 0: it has not */
    struct item *next;
};

struct stream {
    struct object object;
    struct context *context;
    struct gpu *gpu;
    enum stream_role role;
    unsigned flags;
    int priority;
    uint64_t id;
    uint64_t thread;            /* whose default stream it is */
    uint64_t tail;              /* V at which its work ends, as far as it is placed */
    struct item *first, **last;
    bool running;               /* the first item's function is being called */
    bool ended;                 /* destroyed with work in it */
    struct capture *capture;    /* NULL: not captured */
    struct node **follows;      /* nodes that the next captured one depends on */
    size_t follow_count;
    struct stream *next;        /* of the context */
    uint64_t launches;
    uint64_t ends[LAUNCHES_AHEAD];  /* of the last launches, by number */
};

struct stream *stream_make(struct context *context, enum stream_role role, unsigned flags, int priority);
void stream_end(struct stream *stream);

static inline bool stream_is_blocking(const struct stream *stream)
{
    return stream->role != STREAM_LEGACY && (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

/* Where the next work of the stream may begin, from what is placed. */
uint64_t stream_earliest(const struct stream *stream);
/* Something of the stream was placed that ends at `end`. */
void stream_reach(struct stream *stream, uint64_t end);
/* Places a piece of work; where it ends. */
uint64_t stream_place(struct stream *stream, const struct work *work);
/* Sleeps while the stream has taken as many launches as it takes; then counts one more that ends at `end`. */
void stream_hold_up(struct stream *stream);
void stream_count_launch(struct stream *stream, uint64_t end);
/* Queues the item: placed at once where nothing is before it, else a copy waits. False: no memory. */
bool stream_push(struct stream *stream, const struct item *item);
/* The ticket of the last item so far. */
uint64_t stream_ticket(void);
/* Waits until no item of the stream up to `ticket` is left. */
void stream_drain(struct stream *stream, uint64_t ticket);
/* Sleeps until everything queued so far has ended. */
void stream_finish(struct stream *stream);
bool stream_is_done(struct stream *stream);

/* queue.c: places items as far as they can be; true: something moved. `wake`: earlier than what it holds where it has to be looked at again. */
bool queue_progress(struct stream *stream, uint64_t *wake);
/* host.c: something waits in a queue. */
void host_wake(void);

#endif
