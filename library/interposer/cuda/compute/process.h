/*
 * The limiters of this process, one for each limited device, and the contexts that are measured.
 *
 * In: limits, contexts, streams. Out: which limiter and which clock a launch belongs to; the helper's ticks. Not here: threads' queues (thread.h), hooks.
 * Everything is made at the first launch that needs it, and again in a forked child.
 */
#ifndef VCUDA_COMPUTE_PROCESS_H
#define VCUDA_COMPUTE_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "interposer/cuda/hooks.h"
#include "limiter.h"

/* Some device's time is limited; true until the limits were read. All that a launch looks at where nothing is limited. */
extern _Atomic bool compute_limited;
/* Counts what makes queues stale: a limiter that came or went, a context that ended, a fork. */
extern _Atomic uint64_t compute_generation;

/* Reads the limits, once. Whether anything is limited. */
bool compute_begin(void);

/* By position in the limits; NULL: nothing was launched on it. */
extern struct limiter *_Atomic compute_limiters[LIMITS_MAX_DEVICES];
/* Of a device, made where there is none; NULL: not limited, or, not `known`, it cannot be told or made now. */
struct limiter *compute_limiter(CUdevice device, bool *known);

extern const struct measuring compute_driver;
void compute_wake(void);            /* the helper's tick is due */

/* ---- contexts.c ---- */

/* The regular context that a stream is in, also where it is in a green one. */
struct place {
    CUcontext context;
    CUdevice device;
};
/* False: the driver does not say. */
bool contexts_place(CUstream stream, struct place *place);

/* What a stream belongs to. */
struct belonging {
    bool known;                         /* else nobody could say; it may be asked again */
    struct limiter *limiter;            /* NULL: not limited */
    struct timebase *timebase;
};
struct belonging compute_belonging(CUstream stream);

context_end_callback contexts_end;
void contexts_forget(void);

/* A graph that is no more: its handle may come back for another. */
void compute_forget(CUgraphExec graph);

#endif
