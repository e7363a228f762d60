/*
 * A lane: what one thread launches into one stream, gathered into batches that are measured as a whole.
 *
 * In: each launch, before and after it. Out: go, or wait until; batches for the limiter. Not here: finding the lane and the estimate, sleeping, calling
 * the driver's launch. Used by its own thread alone.
 *
 * A batch begins with a mark, or with the end of the one before where the stream never ran empty, and is closed by a mark after BATCH_LAUNCHES launches,
 * BATCH_NS of estimated work, a launch of unknown cost, before a wait, or, late, when the next launch finds that the stream ran empty. Marks are recorded
 * only next to a launch of the application in the same stream. In a stream where the driver makes no marks, a launch whose cost is to be learned is waited
 * for, PATIENCE_NS at most: the host's clock measures it.
 */
#ifndef VCUDA_COMPUTE_LANE_H
#define VCUDA_COMPUTE_LANE_H

#include <stdbool.h>
#include <stdint.h>

#include "limiter.h"

/* The stream has run empty when the next launch comes so long after everything before must have ended. */
#define LANE_GAP_NS UINT64_C(50000)
/* For launches as small as this the clock is read at every fourth only: a gap before one of them is found when others are on their way already. */
#define LANE_SMALL_NS UINT64_C(20000)
enum { LANE_SMALL_LAUNCHES = 4 };

struct lane {
    struct batch *open;
    uint64_t left_ns;                   /* reserved and not used by a launch */
    uint64_t now_ns;                    /* at the last launch that looked at the clock */
    unsigned unseen;                    /* launches since */
    uint64_t tail_ns;                   /* when everything launched so far should have ended */
    bool alone;                         /* the open batch takes one launch */
    bool lost;                          /* the last mark could not be recorded: the stream may be another one by now */
    bool blind;                         /* and never will be: no marks are to be had in this stream */
    uint64_t number;
    uint64_t streams_ended;             /* of the process, when this was last known to be that stream: it is there if none ended since */
    struct limiter *limiter;
    struct timebase *timebase;
    CUstream stream;
    struct mark *last;                  /* the end of the batch before */
    struct waiting waiting;
};

void lane_init(struct lane *lane, struct limiter *limiter, struct timebase *timebase, CUstream stream);

/* Before a launch, the long way. 0: launch, then say lane_took. Else: sleep until then and ask again. */
uint64_t lane_ask(struct lane *lane, struct estimate *estimate, uint64_t now);

/* After the launch that closes a batch (`prompt`: right after it), or one that failed. */
void lane_close(struct lane *lane, bool prompt);
void lane_failed(struct lane *lane);

/* Nothing will be launched here for a while, or ever: what is open goes without an end. No call of the driver. */
void lane_pause(struct lane *lane);
/* Nothing will be launched here any more. */
void lane_end(struct lane *lane);

/* Before a launch: whether the time must be known, or `now_ns` will do. */
static inline bool lane_needs_time(const struct lane *lane, uint64_t ns)
{
    return lane->open == NULL || ns > LANE_SMALL_NS || lane->open->count % LANE_SMALL_LAUNCHES == 0;
}

/* Whether it goes without asking anybody. */
static inline bool lane_goes(const struct lane *lane, uint64_t ns, uint64_t now)
{
    return lane->open != NULL && ns != 0 && ns <= lane->left_ns && now < lane->tail_ns + LANE_GAP_NS;
}

/* After it. */
static inline void lane_took(struct lane *lane, struct estimate *estimate, uint64_t ns, uint64_t now)
{
    struct batch *batch = lane->open;
    lane->unseen = now == lane->now_ns ? lane->unseen + 1 : 0;
    lane->now_ns = now;
    batch->launches[batch->count++] = estimate;
    batch->estimated_ns += ns;
    lane->left_ns = lane->left_ns < ns ? 0 : lane->left_ns - ns;
    lane->tail_ns = (lane->tail_ns > now ? lane->tail_ns : now) +
                    (ns * atomic_load_explicit(&lane->limiter->stretch, memory_order_relaxed) >> 8);
    if (lane->alone || batch->count == BATCH_LAUNCHES || batch->estimated_ns >= BATCH_NS)
        lane_close(lane, true);
}

#endif
