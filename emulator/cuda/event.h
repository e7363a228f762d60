/* Events: points in streams that can be waited for and timed. The inside; under driver_lock(). */
#ifndef VCUDA_EMULATOR_EVENT_H
#define VCUDA_EMULATOR_EVENT_H

#include "stream_state.h"

struct event {
    struct object object;
    struct context *context;
    struct gpu *gpu;            /* of the last record */
    unsigned flags;
    uint64_t recorded;          /* records queued so far */
    uint64_t placed;            /* the newest of them that has a place in V */
    uint64_t v;                 /* that place */
    uint64_t at;                /* when it was recorded: an idle GPU's V stands still, its clock does not */
    uint64_t time;              /* when the GPU passed it; 0: not known yet */
    struct node **captured;     /* last recorded in a captured stream: what waiting for it means there */
    size_t captured_count;
    uint64_t capture_id;        /* 0: not */
    struct cuda_place *place;   /* of an interprocess event that was given out or opened; NULL: none */
    uint64_t place_id;
    bool opened;                /* another process's */
    unsigned holds;             /* queued items that name it */
    bool ended;                 /* destroyed, but held */
    bool listed;                /* among the GPU's timed ones */
    struct event *next_timed, *earlier_timed;
    struct event *next, **link; /* of all events */
};

/* event_share.c: an interprocess event's place is what the process that recorded it last says. */
void event_pull(struct event *event);
void event_push(struct event *event);
void event_unshare(struct event *event);

struct event *event_of(CUevent handle);     /* NULL: none */
CUresult event_record(struct event *event, struct stream *stream);
/* Work queued in the stream from now on begins after the event. */
CUresult event_precede(struct event *event, struct stream *stream);
/* The item's place is known. */
void event_place(struct event *event, uint64_t generation, struct gpu *gpu, uint64_t v, uint64_t recorded_at);
/* Whether the record of that generation is over. */
bool event_is_over(struct event *event, uint64_t generation);
/* Gives a time to those that the GPU has passed. */
void event_settle(struct gpu *gpu);
void events_end(struct context *context);
/* In use by a queued item: its memory stays. */
void event_hold(struct event *event);
void event_let_go(struct event *event);
struct event *event_make(struct context *context, unsigned flags);   /* takes the lock itself */
void event_end(struct event *event);

#endif
