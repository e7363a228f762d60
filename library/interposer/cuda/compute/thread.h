/*
 * What one thread launches: its queues, and the estimates it looked up last.
 *
 * In: a launch's stream and key. Out: its queue, its estimate. Not here: what a queue does (stream_queue.h), the driver's launch. Owned by its thread, so that a
 * launch takes no lock and touches no word of another thread; made at the thread's first limited launch, closed when it ends.
 */
#ifndef VCUDA_COMPUTE_THREAD_H
#define VCUDA_COMPUTE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "guesses.h"
#include "launch.h"
#include "process.h"
#include "stream_queue.h"

enum { THREAD_SETS = 16, THREAD_WAYS = 4, THREAD_ESTIMATES = 256 };

struct thread_queue {
    CUcontext context;                  /* of a default stream; NULL for others, whose handle is enough */
    unsigned long long id;              /* of another stream, never used again; 0: this driver has none */
    bool used;
    struct stream_queue queue;                   /* without a limiter: not limited */
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
    struct stream_queue *recent;                /* of a stream that is not a default one */
    unsigned turn;
    struct thread_queue queues[THREAD_SETS][THREAD_WAYS];
    struct thread_estimate estimates[THREAD_ESTIMATES];
};

extern _Thread_local struct thread *thread_self __attribute__((visibility("hidden"), tls_model("local-dynamic"))); /* as hook_depth */

/* This thread's, made where there is none. NULL without memory. */
struct thread *thread_begin(void);
/* In a forked child. */
void thread_forget(void);

/* It will sleep: what is open in other queues than `asleep` is closed, so that the others hear of it. */
void thread_pause(struct thread *thread, const struct stream_queue *asleep);

struct stream_queue *thread_find_queue(struct thread *thread, CUstream stream);
/* Foreign work is about to be put into the stream: what this thread has open there ends before it. */
void thread_interrupt(struct thread *thread, CUstream stream);

/* NULL is legacy here; a _ptsz function says CU_STREAM_PER_THREAD for it. */
static inline bool thread_is_default(CUstream stream)
{
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

static inline struct stream_queue *thread_queue(struct thread *thread, CUstream stream)
{
    struct stream_queue *recent = thread->recent;
    if (recent != NULL && recent->stream == stream &&
        recent->streams_ended == atomic_load_explicit(&compute_streams_ended, memory_order_relaxed) &&
        thread->generation == atomic_load_explicit(&compute_generation, memory_order_relaxed))
        return recent;
    return thread_find_queue(thread, stream);
}

static inline struct thread_estimate *thread_estimate(struct thread *thread, struct stream_queue *queue, const struct launch_key *key)
{
    struct thread_estimate *found = &thread->estimates[launch_key_hash(key) % THREAD_ESTIMATES];
    if (launch_key_equal(&found->key, key) && found->limiter == queue->limiter &&
        atomic_load_explicit(&found->estimate->identity, memory_order_relaxed) == found->identity)
        return found;
    found->estimate = guesses_find(queue->limiter->estimates, key);
    found->identity = atomic_load_explicit(&found->estimate->identity, memory_order_relaxed);
    found->key = *key;
    found->limiter = queue->limiter;
    return found;
}

#endif
