/*
 * Marks: points in a stream whose GPU time is learned later, without waiting; and one clock for all of a context's marks.
 *
 * In: a context, a stream to mark. Out: whether a mark was reached, when, on CLOCK_MONOTONIC. Not here: what is between marks.
 *
 * A mark is a CUDA event of the context's pool. Its time is the elapsed time since the context's origin, an older mark that is replaced every
 * second because the driver answers in a float. The GPU's clock is tied to the host's by what must be true: a mark is reached after it was
 * asked for and before it was seen. Marks in an idle stream make that tight to some microseconds.
 * Invariants: a mark that is held is not recorded again; nothing is asked of a context that is gone; durations do not depend on the tie.
 */
#ifndef VCUDA_COMPUTE_TIMEBASE_H
#define VCUDA_COMPUTE_TIMEBASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"

/* What measuring asks of the driver and the clock. */
struct measuring {
    CUresult (*event_create)(CUevent *event, unsigned int flags);
    CUresult (*event_record)(CUevent event, CUstream stream);
    CUresult (*event_query)(CUevent event);
    CUresult (*event_elapsed)(float *milliseconds, CUevent start, CUevent end);
    CUresult (*context_push)(CUcontext context);
    CUresult (*context_pop)(CUcontext *context);
    CUresult (*exchange_capture_mode)(CUstreamCaptureMode *mode);
    uint64_t (*now)(void);
    void (*wake)(void);                 /* the helper has slept since it had nothing to do */
    CUresult (*stream_query)(CUstream stream);
    void (*sleep_for)(uint64_t ns);
};

struct mark {
    struct mark *next;
    struct timebase *timebase;
    CUevent event;
    _Atomic uint32_t holders;
    uint64_t asked_ns, told_ns;         /* host, just before it was recorded, and just after */
    int64_t gpu_ns;                     /* once reached: since the first origin */
    _Atomic bool reached;
};

struct timebase {
    const struct measuring *driver;
    CUcontext context;
    pthread_mutex_t lock;               /* of the pool */
    struct mark *free;
    _Atomic bool gone;                  /* the context, and all events with it */
    struct mark *origin;                /* from here on: for the harvesting thread */
    int64_t offset_ns;                  /* host - GPU */
    bool tied;
};

void timebase_init(struct timebase *timebase, const struct measuring *driver, CUcontext context);

/* Records a mark, held once; NULL where the driver does not want to. `refused`: it never will, as far as can be told; no capture or ending context is why. */
struct mark *mark_record(struct timebase *timebase, CUstream stream, bool *refused);
struct mark *mark_hold(struct mark *mark);
void mark_drop(struct mark *mark);      /* NULL is fine */

enum mark_state { MARK_AHEAD, MARK_REACHED, MARK_LOST };

/*
 * Around questions that a capture somewhere in the process forbids ("potentially unsafe" calls): in between they are this thread's own affair.
 */
CUstreamCaptureMode measuring_relax(const struct measuring *driver);
void measuring_restore(const struct measuring *driver, CUstreamCaptureMode mode);

/* One harvester at a time, relaxed, with the context current. */
enum mark_state mark_look(struct mark *mark);

/* Whether it was seen to be reached: for any thread that holds it. */
static inline bool mark_is_reached(const struct mark *mark)
{
    return atomic_load_explicit(&mark->reached, memory_order_relaxed);
}

/* When a mark that was reached was reached. */
static inline uint64_t mark_time(const struct mark *mark)
{
    return (uint64_t)(mark->gpu_ns + mark->timebase->offset_ns);
}

#endif
