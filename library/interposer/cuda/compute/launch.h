/*
 * A launch on its way through the limiter: every hook that launches something asks before it and tells after it.
 *
 *     if (compute_free())
 *         return real.cuX(...);
 *     struct launch_ticket ticket;
 *     if (!compute_enter(&ticket, &key, stream))
 *         return real.cuX(...);                    not limited, or being captured
 *     return compute_leave(&ticket, DRIVER_AT(ticket.depth, cuX, ...));
 */
#ifndef VCUDA_COMPUTE_LAUNCH_H
#define VCUDA_COMPUTE_LAUNCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "captures.h"
#include "estimates.h"
#include "interposer/cuda/hooks.h"
#include "process.h"

struct stream_queue;

struct launch_ticket {
    struct stream_queue *queue;
    struct estimate *estimate;
    unsigned *depth;                    /* the thread's hook_depth */
    uint64_t ns, now;
};

/* Streams destroyed, ever: raised before the driver hears of it. Queues that were not used since look whether their stream is still the same. */
extern _Atomic uint64_t compute_streams_ended;

static inline bool compute_free(void)
{
    return __builtin_expect(!atomic_load_explicit(&compute_limited, memory_order_relaxed), 1);
}

/* What a _ptsz function means. */
static inline CUstream own_stream(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* Waits as long as it must. False: nobody wants to hear of this launch. */
bool compute_enter(struct launch_ticket *ticket, const struct launch_key *key, CUstream stream);
CUresult compute_leave(const struct launch_ticket *ticket, CUresult error);

/* All of a hook that is limited, whatever it launches. */
#define LAUNCH_PASS(key, stream, symbol, ...)                                                                          \
    struct launch_ticket ticket;                                                                                       \
    struct launch_key launched = key;                                                                                  \
    if (!compute_enter(&ticket, &launched, stream))                                                                    \
        return real.symbol(__VA_ARGS__);                                                                               \
    return compute_leave(&ticket, DRIVER_AT(ticket.depth, symbol, __VA_ARGS__));

/* Around foreign work of this thread that is put into a stream (foreign_work.h). */
void compute_foreign_begin(CUstream stream);
CUresult compute_foreign_end(CUstream stream, CUresult error);

#endif
