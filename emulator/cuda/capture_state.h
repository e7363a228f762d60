/* Stream capture as the core uses it: what becomes of each kind of call in a captured stream. Under driver_lock() unless said otherwise. */
#ifndef VCUDA_EMULATOR_CAPTURE_STATE_H
#define VCUDA_EMULATOR_CAPTURE_STATE_H

#include <stdatomic.h>

#include "capture.h"
#include "graph.h"

extern _Atomic unsigned captures_going;

/* Without the lock: whether any capture is going on in the process. */
static inline bool capture_is_possible(void)
{
    return atomic_load_explicit(&captures_going, memory_order_relaxed) != 0;
}

/* True: the call is the capture's, or fails with `error` because of one. */
bool capture_takes(struct stream *stream, CUresult *error);
CUresult capture_kernel(struct stream *stream, const struct launch *launch, const struct work *work);
CUresult capture_host(struct stream *stream, CUhostFn function, void *data);
CUresult capture_child(struct stream *stream, const struct graph *graph);
CUresult capture_record(struct stream *stream, struct event *event, unsigned flags);
/* A captured stream waits for an event that is not captured. */
CUresult capture_wait(struct stream *stream, struct event *event, unsigned flags);
/* Any stream waits for a captured event, and joins its capture. */
CUresult capture_join(struct stream *stream, struct event *event);
CUresult capture_forbids_event(const struct event *event);
CUresult capture_forbids_context(const struct context *context);   /* takes the lock itself */
/* The stream is destroyed. */
void capture_leave(struct stream *stream);

#endif
