/*
 * A stream queue: what one thread launches into one stream, gathered into batches that are measured as a whole.
 *
 * In: each launch, before and after it. Out: go, or wait until; batches for the limiter. Not here: finding the queue and the estimate, sleeping, calling
 * the driver's launch. Used by its own thread alone.
 *
 * A batch begins with a mark, or with the end of the one before where the stream never ran empty, and is closed by a mark after BATCH_LAUNCHES launches,
 * BATCH_NS of estimated work, a launch of unknown cost, before a wait, or, late, when the next launch finds that the stream ran empty. What is closed late
 * is not measured, so a batch is also closed behind as many launches as there were before the stream was last found empty: programs repeat their steps.
 * Marks are recorded only next to a launch of the application in the same stream. In a stream where the driver makes no marks, a launch whose cost is to be learned is waited
 * for, PATIENCE_NS at most: the host's clock measures it.
 * What is put into the stream and is no launch is in no batch: its own thread ends the open one before it, and the next begins with a mark. Where another
 * thread put it there, the batch is not measured by its marks.
 */
#ifndef VCUDA_COMPUTE_STREAM_QUEUE_H
#define VCUDA_COMPUTE_STREAM_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "limiter.h"

/* The stream has run empty when the next launch comes so long after everything before must have ended. */
#define QUEUE_GAP_NS UINT64_C(50000)
/* For launches as small as this the clock is read at every fourth only: a gap before one of them is found when others are on their way already. */
#define QUEUE_SMALL_NS UINT64_C(20000)
enum { QUEUE_SMALL_LAUNCHES = 4 };

struct stream_queue {
    struct batch *open;
    uint64_t left_ns;                   /* reserved and not used by a launch */
    uint64_t now_ns;                    /* at the last launch that looked at the clock */
    unsigned unseen;                    /* launches since */
    uint64_t tail_ns;                   /* when everything launched so far should have ended */
    unsigned step, usual;               /* launches since the stream was last found empty, and between the two times before */
    bool alone;                         /* the open batch takes one launch */
    bool lost;                          /* the last mark could not be recorded: the stream may be another one by now */
    bool blind;                         /* and never will be: no marks are to be had in this stream */
    uint64_t number;
    uint64_t foreign;                   /* how often foreign work was put into the stream before the open batch, or the one before */
    uint64_t streams_ended;             /* of the process, when this was last known to be that stream: it is there if none ended since */
    struct limiter *limiter;
    struct timebase *timebase;
    CUstream stream;
    struct mark *last;                  /* the end of the batch before */
    struct waiting waiting;
};

void queue_init(struct stream_queue *queue, struct limiter *limiter, struct timebase *timebase, CUstream stream);

/* Before a launch, the long way. 0: launch, then say queue_took. Else: sleep until then and ask again. */
uint64_t queue_ask(struct stream_queue *queue, struct estimate *estimate, uint64_t now);

/* After the launch that closes a batch (`prompt`: right after it), or one that failed. */
void queue_close(struct stream_queue *queue, bool prompt);
void queue_failed(struct stream_queue *queue);

/* Foreign work is about to be put into the stream by this thread. */
void queue_interrupt(struct stream_queue *queue);

/* Nothing will be launched here for a while, or ever: what is open goes without an end. No call of the driver. */
void queue_pause(struct stream_queue *queue);
/* Nothing will be launched here any more. */
void queue_end(struct stream_queue *queue);

/* Before a launch: whether the time must be known, or `now_ns` will do. */
static inline bool queue_needs_time(const struct stream_queue *queue, uint64_t ns)
{
    return queue->open == NULL || ns > QUEUE_SMALL_NS || queue->open->count % QUEUE_SMALL_LAUNCHES == 0;
}

/* Whether it goes without asking anybody. */
static inline bool queue_goes(const struct stream_queue *queue, uint64_t ns, uint64_t now)
{
    return queue->open != NULL && ns != 0 && ns <= queue->left_ns && now < queue->tail_ns + QUEUE_GAP_NS;
}

/* After it. */
static inline void queue_took(struct stream_queue *queue, struct estimate *estimate, uint64_t ns, uint64_t now)
{
    struct batch *batch = queue->open;
    queue->unseen = now == queue->now_ns ? queue->unseen + 1 : 0;
    queue->now_ns = now;
    batch->launches[batch->count++] = estimate;
    batch->estimated_ns += ns;
    queue->left_ns = queue->left_ns < ns ? 0 : queue->left_ns - ns;
    queue->step++;
    queue->tail_ns = (queue->tail_ns > now ? queue->tail_ns : now) +
                    (ns * atomic_load_explicit(&queue->limiter->stretch, memory_order_relaxed) >> 8);
    if (queue->alone || batch->count == BATCH_LAUNCHES || batch->estimated_ns >= BATCH_NS)
        queue_close(queue, true);
    else if (queue->step == queue->usual)
        queue_close(queue, false);
}

#endif
