/*
 * The limiter of one device in one process: who may launch now, what was launched and waits to be measured, what it cost.
 *
 * In: the container's budget, rows of the GPU, batches of launches (stream_queue.h), the time. Out: go, or wait until; charges, estimates, this process's
 * presence. Not here: sleeping, threads, which device, what the application called. Every function takes or reads the time through `driver->now`, so all
 * of it also runs on a simulated clock.
 *
 * The rule. A launch goes when the container's available GPU time is not negative; what it is expected to cost is reserved at once, and when it is
 * measured the measured time takes the reservation's place. Debt of any size is paid by waiting, at the rate of the limit: that is progress, and so is
 * any other launch of the container. Without progress for PATIENCE_NS a launch goes, whatever is owed, and the debt stays: an estimate that grows while
 * a kernel waits for the very launch that is held back, a clock that stands. Where several wait so, they take turns: a longer wait makes
 * less patient, or one thread could starve. Beside a launch that does not end for ENDLESS_NS the others of its process go all the same, one after
 * the other, each when the limit has earned its cost: they run in GPU time that is owed already. A launch of unknown cost goes when fewer than
 * UNKNOWN_LAUNCHES of them are on the GPU, or none of them was measured for PATIENCE_NS. Of a launch that waits for another GPU only a part is charged,
 * or ranks of a job would hold each other back ever longer (waits.h).
 */
#ifndef VCUDA_COMPUTE_LIMITER_H
#define VCUDA_COMPUTE_LIMITER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "borrow.h"
#include "budget.h"
#include "estimates.h"
#include "interval_set.h"
#include "neighbours.h"
#include "presence.h"
#include "timebase.h"

#define PATIENCE_NS UINT64_C(250000000)
#define ENDLESS_NS UINT64_C(2000000000)
/* A batch is closed, and measured, at so much estimated GPU time. */
#define BATCH_NS UINT64_C(1000000)
/* A queue reserves so much ahead of its launches. */
#define AHEAD_NS UINT64_C(250000)

enum { UNKNOWN_LAUNCHES = 2, BATCH_LAUNCHES = 128, CORRECTIONS = 2048 };

/* Launches in one stream, one after the other, between two marks. */
struct batch {
    struct batch *next;
    uint64_t queue;                      /* batches of a queue end in order */
    struct mark *start, *end;           /* NULL: could not be marked; its estimates stand for it, or the time until it was looked at */
    uint64_t first_ns, closed_ns;       /* host: before the first launch; when the end was marked */
    uint64_t alone_lag_ns;              /* how late the end is reached if only the last launch was on the GPU when it was asked for */
    uint64_t reserved_ns, estimated_ns;
    bool unknown;
    bool blurred;                       /* the stream ran empty, somewhere in between */
    bool prompt;                        /* closed right behind its last launch */
    bool mixed;                         /* another thread put foreign work into the stream between the marks */
    bool watch, watched;                /* if the driver makes no marks: to be, was waited for by its thread, from first_ns until closed_ns */
    unsigned count;
    struct estimate *launches[BATCH_LAUNCHES];
    struct interval stretch;            /* once measured */
};

/* A part of a stretch that was charged before the neighbours' measurements were there. */
struct correction {
    struct interval part;
    uint64_t charged_ns;
    bool final;
    bool waited;                        /* a launch waited: it costs less, and nothing where other work was measured meanwhile */
};

struct limiter {
    struct budget budget;
    const struct measuring *driver;
    _Atomic bool divided;               /* the GPU slices its time between processes (not with MPS) */
    _Atomic uint32_t cores, soft_cores;
    _Atomic uint32_t unknown;           /* launches of unknown cost on the GPU */
    _Atomic uint32_t stretch;           /* 256ths: how much longer than alone things take now */
    _Atomic uint32_t overlap;           /* 256ths: what of a launch's time is not another stream's too */
    _Atomic uint64_t switched_ns;       /* when a batch was measured that is of another stream than the one before */
    _Atomic uint64_t gather_until_ns, probe_ns; /* admission.c */
    _Atomic uint64_t measured, measured_unknown; /* batches, ever; those of unknown cost */
    _Atomic uint64_t harvested_ns;
    _Atomic uint64_t busy_until_ns;     /* no launch of an open batch is expected to end later */
    _Atomic uint64_t held_since_ns;     /* running_since_ns, for admission */
    _Atomic uint64_t beside_ns;         /* no launch goes beside it before */
    struct estimate *_Atomic sample;    /* the next launch of it should be measured alone; its word says so, too */
    _Atomic bool asleep;                /* no tick is due */
    const struct timebase *_Atomic inside;  /* whose context the harvesting thread asks about */
    struct estimates *estimates;

    pthread_mutex_t inbox_lock;
    struct batch *inbox, **inbox_end, *spare;

    pthread_mutex_t harvest_lock;       /* from here on */
    struct batch *pending, **pending_end;
    struct batch *settling, **settling_end;
    unsigned settling_count;
    struct presence presence;
    struct neighbours neighbours;
    struct interval_set charged_time, waited_time; /* a wait is in the first when it was corrected */
    struct interval_set published_time;
    uint64_t measured_until_ns;
    uint64_t ahead_since_ns;            /* when the oldest launch that is not over was made; 0: none is */
    uint64_t running_since_ns;          /* of these, when the first began on the GPU, as far as is known; 0: none did */
    unsigned loose_batches, samples;
    uint64_t last_queue;
    double recent_charged, recent_own;
    unsigned correction_first, correction_count;
    struct correction corrections[CORRECTIONS];
    struct interval parts[INTERVAL_SET_MOST + 1];
    struct edges edges;
};

/* What a waiting launch remembers. Zero: not waiting. */
struct waiting {
    uint64_t since_ns, accounted_ns;
    uint64_t checked_ns, checked_count, checked_unknown;
    int64_t checked_available;
};

void limiter_init(struct limiter *limiter, const struct measuring *driver, struct estimates *estimates, struct budget budget);
void limiter_set(struct limiter *limiter, uint32_t cores, uint32_t soft_cores);

/* ---- admission (admission.c), any thread ---- */

/* Launches that may take so long together, and what was reserved for them: less where streams overlap. */
struct grant {
    uint64_t ns, reserved_ns;
};

/* 0: go, for `expected_ns` of launches or, where there is more, up to `most_ns`. Else: sleep until then and ask again. `expected_ns` 0: unknown. */
uint64_t limiter_admit(struct limiter *limiter, struct waiting *waiting, uint64_t expected_ns, uint64_t most_ns, struct grant *grant);

/* What has to be reserved for launches that take so long. */
static inline uint64_t limiter_reservation(const struct limiter *limiter, uint64_t ns)
{
    return ns * atomic_load_explicit(&limiter->overlap, memory_order_relaxed) >> 8;
}

/* It is launched, or will not be. */
static inline void limiter_end_sample(struct limiter *limiter)
{
    struct estimate *sample = atomic_exchange(&limiter->sample, NULL);
    if (sample != NULL)
        estimate_set_alone(sample, false);
}

/* ---- batches, any thread ---- */

struct batch *limiter_new_batch(struct limiter *limiter);
void limiter_free_batch(struct limiter *limiter, struct batch *batch);
/* A closed batch. What is reserved for it stays so until it is measured. */
void limiter_submit(struct limiter *limiter, struct batch *batch);

/* ---- harvest (harvest.c) ---- */

/* Measures what is done. Where somebody else is at it: nothing, unless `wait`. */
void limiter_harvest(struct limiter *limiter, bool wait);
/* The helper's turn: neighbours, rate, harvest. Returns when it wants the next, or UINT64_MAX. */
uint64_t limiter_tick(struct limiter *limiter);

#endif
