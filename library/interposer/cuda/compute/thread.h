/*
 * What one thread launches: its lanes, and the estimates it looked up last.
 *
 * In: a launch's stream and key. Out: its lane, its estimate. Not here: what a lane does (lane.h), the driver's launch. Owned by its thread, so that a
 * launch takes no lock and touches no word of another thread; made at the thread's first limited launch, closed when it ends.
 */
#ifndef VCUDA_COMPUTE_THREAD_H
#define VCUDA_COMPUTE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "lane.h"
#include "launch.h"
#include "process.h"

enum { THREAD_SETS = 16, THREAD_WAYS = 4, THREAD_ESTIMATES = 256 };

struct thread_lane {
    CUcontext context;                  /* of a default stream; NULL for others, whose handle is enough */
    unsigned long long id;              /* of another stream, never used again; 0: this driver has none */
    bool used;
    struct lane lane;                   /* without a limiter: not limited */
};

struct thread_estimate {
    struct launch_key key;
    const struct limiter *limiter;
    uint64_t identity;                  /* as long as the entry is still this key's */
    struct estimate *estimate;
};

struct thread {
    uint64_t generation;
    struct quick_clock clock;
    struct lane *recent;                /* of a stream that is not a default one */
    unsigned turn;
    struct thread_lane lanes[THREAD_SETS][THREAD_WAYS];
    struct thread_estimate estimates[THREAD_ESTIMATES];
};

extern _Thread_local struct thread *thread_self;

/* This thread's, made where there is none. NULL without memory. */
struct thread *thread_begin(void);
/* In a forked child. */
void thread_forget(void);

/* It will sleep: what is open in other lanes than `asleep` is closed, so that the others hear of it. */
void thread_pause(struct thread *thread, const struct lane *asleep);

struct lane *thread_find_lane(struct thread *thread, CUstream stream);

/* NULL is legacy here; a _ptsz function says CU_STREAM_PER_THREAD for it. */
static inline bool thread_is_default(CUstream stream)
{
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

static inline struct lane *thread_lane(struct thread *thread, CUstream stream)
{
    struct lane *recent = thread->recent;
    if (recent != NULL && recent->stream == stream &&
        recent->streams_ended == atomic_load_explicit(&compute_streams_ended, memory_order_relaxed) &&
        thread->generation == atomic_load_explicit(&compute_generation, memory_order_relaxed))
        return recent;
    return thread_find_lane(thread, stream);
}

static inline struct thread_estimate *thread_estimate(struct thread *thread, struct lane *lane, const struct launch_key *key)
{
    struct thread_estimate *found = &thread->estimates[launch_key_hash(key) % THREAD_ESTIMATES];
    if (launch_key_equal(&found->key, key) && found->limiter == lane->limiter &&
        atomic_load_explicit(&found->estimate->identity, memory_order_relaxed) == found->identity)
        return found;
    found->estimate = estimates_find(lane->limiter->estimates, key);
    found->identity = atomic_load_explicit(&found->estimate->identity, memory_order_relaxed);
    found->key = *key;
    found->limiter = lane->limiter;
    return found;
}

#endif
