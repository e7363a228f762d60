/* See lane.h. */
#include "lane.h"

#define MARGIN_NS UINT64_C(5000)
/* Beyond what is expected of the open batch, before it counts as over. */
#define BUSY_MARGIN_NS UINT64_C(1000000)

/* A stream that is watched is asked again at once for so long, then ever less often. */
#define KEEN_NS UINT64_C(100000)
#define LOOK_NS UINT64_C(20000)
#define LOOK_MOST_NS UINT64_C(1000000)

static _Atomic uint64_t numbers;

void lane_init(struct lane *lane, struct limiter *limiter, struct timebase *timebase, CUstream stream)
{
    uint64_t number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
    *lane = (struct lane){.limiter = limiter, .timebase = timebase, .stream = stream, .number = number};
}

static uint64_t stretched(const struct lane *lane, uint64_t ns)
{
    return ns * atomic_load_explicit(&lane->limiter->stretch, memory_order_relaxed) >> 8;
}

static void keep_last(struct lane *lane, struct mark *mark)
{
    mark_drop(lane->last);
    lane->last = mark;
}

/* What is reserved for the batch becomes what its launches need. */
static void reserve_exactly(struct lane *lane, struct batch *batch)
{
    uint64_t needed = limiter_reservation(lane->limiter, batch->estimated_ns);
    if (needed < batch->reserved_ns)
        budget_release(&lane->limiter->budget, batch->reserved_ns - needed);
    else
        budget_reserve(&lane->limiter->budget, needed - batch->reserved_ns);
    batch->reserved_ns = needed;
    lane->left_ns = 0;
}

/* An empty batch leaves no trace but the mark, behind which nothing came. */
static void discard(struct lane *lane)
{
    struct limiter *limiter = lane->limiter;
    struct batch *batch = lane->open;
    lane->open = NULL;
    reserve_exactly(lane, batch);
    if (batch->unknown)
        atomic_fetch_sub_explicit(&limiter->unknown, 1, memory_order_relaxed);
    mark_drop(batch->start);
    limiter_free_batch(limiter, batch);
}

static uint64_t alone_lag(const struct lane *lane, const struct batch *batch, uint64_t now)
{
    uint64_t last = stretched(lane, estimate_ns(batch->launches[batch->count - 1]));
    uint64_t ahead = lane->tail_ns > now ? lane->tail_ns - now : 0;
    return ahead < last ? ahead : last;
}

/* Until the stream is empty, or for as long as patience goes. Only where it is about to be launched into, or just was: it exists. */
static void watch(struct lane *lane)
{
    const struct measuring *driver = lane->limiter->driver;
    CUstreamCaptureMode mode = measuring_relax(driver);
    uint64_t began = driver->now(), waited = 0;
    while (driver->stream_query(lane->stream) == CUDA_ERROR_NOT_READY && (waited = driver->now() - began) < PATIENCE_NS) {
        if (waited > KEEN_NS)
            driver->rest(LOOK_NS + waited / 16 < LOOK_MOST_NS ? LOOK_NS + waited / 16 : LOOK_MOST_NS);
    }
    measuring_restore(driver, mode);
}

/* `end` is the lane's from here on. */
static void submit(struct lane *lane, struct mark *end)
{
    struct batch *batch = lane->open;
    batch->end = mark_hold(end);
    keep_last(lane, end);
    reserve_exactly(lane, batch);
    lane->open = NULL;
    limiter_submit(lane->limiter, batch);
}

void lane_close(struct lane *lane, bool prompt)
{
    struct batch *batch = lane->open;
    if (batch->count == 0) {
        discard(lane);
        return;
    }
    bool refused;
    batch->watched = batch->watch && prompt;
    if (batch->watched)
        watch(lane);
    uint64_t now = lane->limiter->driver->now();
    batch->closed_ns = now;
    batch->prompt = prompt;
    batch->blurred = lane->unseen != 0 && now >= lane->tail_ns + LANE_GAP_NS;
    batch->alone_lag_ns = alone_lag(lane, batch, now);
    submit(lane, batch->start == NULL ? NULL : mark_record(lane->timebase, lane->stream, &refused));
}

void lane_pause(struct lane *lane)
{
    if (lane->open == NULL)
        return;
    if (lane->open->count == 0) {
        discard(lane);
        return;
    }
    lane->open->closed_ns = lane->limiter->driver->now();
    submit(lane, NULL);
}

void lane_failed(struct lane *lane)
{
    if (lane->open->count == 0)
        discard(lane);
}

void lane_end(struct lane *lane)
{
    lane_pause(lane);
    keep_last(lane, NULL);
}

/* The batch begins where the one before ended if the stream is still at work, else here. */
static struct mark *first_mark(struct lane *lane, uint64_t now)
{
    if (lane->last != NULL && lane->tail_ns > now + MARGIN_NS)
        return mark_hold(lane->last);
    return mark_record(lane->timebase, lane->stream, &lane->blind);
}

/* Sequentially consistent, as the helper's way to sleep (harvest.c). */
static void extend_busy(struct limiter *limiter, uint64_t until)
{
    uint64_t known = atomic_load_explicit(&limiter->busy_until_ns, memory_order_relaxed);
    while (known < until && !atomic_compare_exchange_weak(&limiter->busy_until_ns, &known, until))
        ;
    if (atomic_load(&limiter->asleep) && atomic_exchange(&limiter->asleep, false))
        limiter->driver->wake();
}

static bool begin(struct lane *lane, bool unknown, bool learn)
{
    struct limiter *limiter = lane->limiter;
    struct batch *batch = limiter_new_batch(limiter);
    if (batch == NULL)
        return false;
    uint64_t now = limiter->driver->now();
    batch->lane = lane->number;
    batch->start = first_mark(lane, now);
    lane->lost = batch->start == NULL;
    batch->watch = lane->lost && lane->blind && learn;
    if (batch->watch)
        watch(lane);
    batch->first_ns = limiter->driver->now();
    batch->unknown = unknown;
    if (unknown)
        atomic_fetch_add_explicit(&limiter->unknown, 1, memory_order_relaxed);
    lane->open = batch;
    return true;
}

uint64_t lane_ask(struct lane *lane, struct estimate *estimate, uint64_t now)
{
    struct limiter *limiter = lane->limiter;
    uint64_t ns = estimate_ns(estimate);
    struct grant grant;
    bool sample = ns != 0 && atomic_load_explicit(&limiter->sample, memory_order_relaxed);
    lane->alone = ns == 0 || sample || ns >= BATCH_NS;
    if (lane->open != NULL && (lane->alone || now >= lane->tail_ns + LANE_GAP_NS))
        lane_close(lane, false);
    uint64_t until = limiter_admit(limiter, &lane->waiting, ns, lane->alone ? 0 : AHEAD_NS, &grant);
    if (until != 0 && lane->open != NULL)
        lane_close(lane, false);
    if (until != 0)
        return until;
    if (sample)
        atomic_store_explicit(&limiter->sample, false, memory_order_relaxed);
    if (lane->open == NULL && !begin(lane, ns == 0, ns == 0 || sample)) {
        budget_release(&limiter->budget, grant.reserved_ns);
        return 0;
    }
    lane->open->reserved_ns += grant.reserved_ns;
    lane->left_ns += grant.ns;
    extend_busy(limiter, (lane->tail_ns > now ? lane->tail_ns : now) + stretched(lane, lane->left_ns) + BUSY_MARGIN_NS);
    presence_begin(limiter->presence.own, now);
    return 0;
}
