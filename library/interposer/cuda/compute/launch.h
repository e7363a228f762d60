/*
 * A launch on its way through the limiter: every hook that launches something asks before it and tells after it.
 *
 *     if (compute_free())
 *         return real.cuX(...);
 *     struct passage passage;
 *     if (!compute_enter(&passage, &key, stream))
 *         return real.cuX(...);                    not limited, or being captured
 *     return compute_leave(&passage, DRIVER(cuX, ...));
 */
#ifndef VCUDA_COMPUTE_LAUNCH_H
#define VCUDA_COMPUTE_LAUNCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "estimates.h"
#include "interposer/cuda/hooks.h"
#include "process.h"

struct lane;

struct passage {
    struct lane *lane;
    struct estimate *estimate;
    uint64_t ns, now;
};

/* Captures begun and not ended in this process: while there are some, each launch asks whether its stream is in one. */
extern _Atomic uint32_t compute_captures;
/* Streams destroyed, ever. Both are raised with this lock held, before the driver hears of it: who holds it may mark streams of its lanes. */
extern _Atomic uint64_t compute_streams_ended;
extern pthread_mutex_t compute_streams_lock;

static inline bool compute_free(void)
{
    return __builtin_expect(!atomic_load_explicit(&compute_limited, memory_order_relaxed), 1);
}

/* Waits as long as it must. False: nobody wants to hear of this launch. */
bool compute_enter(struct passage *passage, const struct launch_key *key, CUstream stream);
CUresult compute_leave(const struct passage *passage, CUresult error);

#endif
