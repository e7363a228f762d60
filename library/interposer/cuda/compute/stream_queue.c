/* See stream_queue.h. */
#include "stream_queue.h"

#include "foreign_work.h"

#define MARGIN_NS UINT64_C(5000)
/* Beyond what is expected of the open batch, before it counts as over. */
#define BUSY_MARGIN_NS UINT64_C(1000000)

/* A stream that is watched is asked again at once for so long, then ever less often. */
#define KEEN_NS UINT64_C(100000)
#define LOOK_NS UINT64_C(20000)
#define LOOK_MOST_NS UINT64_C(1000000)

static _Atomic uint64_t numbers = 1;

void queue_init(struct stream_queue *queue, struct limiter *limiter, struct timebase *timebase, CUstream stream)
{
    uint64_t number = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
    *queue = (struct stream_queue){.limiter = limiter, .timebase = timebase, .stream = stream, .number = number};
}

static uint64_t stretched(const struct stream_queue *queue, uint64_t ns)
{
    return ns * atomic_load_explicit(&queue->limiter->stretch, memory_order_relaxed) >> 8;
}

static void keep_last(struct stream_queue *queue, struct mark *mark)
{
    mark_drop(queue->last);
    queue->last = mark;
}

/* What is reserved for the batch becomes what its launches need. */
static void reserve_exactly(struct stream_queue *queue, struct batch *batch)
{
    uint64_t needed = limiter_reservation(queue->limiter, batch->estimated_ns);
    if (needed < batch->reserved_ns)
        budget_release(&queue->limiter->budget, batch->reserved_ns - needed);
    else
        budget_reserve(&queue->limiter->budget, needed - batch->reserved_ns);
    batch->reserved_ns = needed;
    queue->left_ns = 0;
}

/* An empty batch leaves no trace but the mark, behind which nothing came. */
static void discard(struct stream_queue *queue)
{
    struct limiter *limiter = queue->limiter;
    struct batch *batch = queue->open;
    queue->open = NULL;
    reserve_exactly(queue, batch);
    if (batch->unknown)
        atomic_fetch_sub_explicit(&limiter->unknown, 1, memory_order_relaxed);
    mark_drop(batch->start);
    limiter_free_batch(limiter, batch);
}

static uint64_t alone_lag(const struct stream_queue *queue, const struct batch *batch, uint64_t now)
{
    uint64_t last = stretched(queue, estimate_ns(batch->launches[batch->count - 1]));
    uint64_t ahead = queue->tail_ns > now ? queue->tail_ns - now : 0;
    return ahead < last ? ahead : last;
}

/* Until the stream is empty, or for as long as patience goes. Only where it is about to be launched into, or just was: it exists. */
static void watch(struct stream_queue *queue)
{
    const struct measuring *driver = queue->limiter->driver;
    CUstreamCaptureMode mode = measuring_relax(driver);
    uint64_t began = driver->now(), waited = 0;
    while (driver->stream_query(queue->stream) == CUDA_ERROR_NOT_READY && (waited = driver->now() - began) < PATIENCE_NS) {
        if (waited > KEEN_NS)
            driver->sleep_for(LOOK_NS + waited / 16 < LOOK_MOST_NS ? LOOK_NS + waited / 16 : LOOK_MOST_NS);
    }
    measuring_restore(driver, mode);
}

/* `end` is the queue's from here on. */
static void submit(struct stream_queue *queue, struct mark *end)
{
    struct batch *batch = queue->open;
    batch->end = mark_hold(end);
    keep_last(queue, end);
    reserve_exactly(queue, batch);
    queue->open = NULL;
    limiter_submit(queue->limiter, batch);
}

void queue_close(struct stream_queue *queue, bool prompt)
{
    struct batch *batch = queue->open;
    if (batch->count == 0) {
        discard(queue);
        return;
    }
    bool refused;
    batch->watched = batch->watch && prompt;
    if (batch->watched)
        watch(queue);
    uint64_t now = queue->limiter->driver->now();
    batch->closed_ns = now;
    batch->prompt = prompt;
    batch->blurred = queue->unseen != 0 && now >= queue->tail_ns + QUEUE_GAP_NS;
    batch->alone_lag_ns = alone_lag(queue, batch, now);
    struct mark *end = batch->start == NULL ? NULL : mark_record(queue->timebase, queue->stream, &refused);
    batch->mixed = foreign_work_count(queue->stream) != queue->foreign;
    submit(queue, end);
}

void queue_interrupt(struct stream_queue *queue)
{
    if (queue->open != NULL)
        queue_close(queue, false);
}

void queue_pause(struct stream_queue *queue)
{
    if (queue->open == NULL)
        return;
    if (queue->open->count == 0) {
        discard(queue);
        return;
    }
    queue->open->closed_ns = queue->limiter->driver->now();
    submit(queue, NULL);
}

void queue_failed(struct stream_queue *queue)
{
    if (queue->open->count == 0)
        discard(queue);
}

void queue_end(struct stream_queue *queue)
{
    queue_pause(queue);
    keep_last(queue, NULL);
}

/*
 * The batch begins where the one before ended if the stream is still at work and nothing else is in between, else here. A launch whose own time is wanted
 * (`from`: since then) begins no earlier.
 */
static struct mark *first_mark(struct stream_queue *queue, uint64_t now, uint64_t from)
{
    uint64_t foreign = foreign_work_count(queue->stream);
    bool follows = foreign == queue->foreign;
    queue->foreign = foreign;
    if (follows && queue->last != NULL && queue->tail_ns > now + MARGIN_NS && queue->last->asked_ns >= from)
        return mark_hold(queue->last);
    return mark_record(queue->timebase, queue->stream, &queue->blind);
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

static bool begin(struct stream_queue *queue, bool unknown, bool learn, uint64_t from)
{
    struct limiter *limiter = queue->limiter;
    struct batch *batch = limiter_new_batch(limiter);
    if (batch == NULL)
        return false;
    uint64_t now = limiter->driver->now();
    batch->queue = queue->number;
    batch->start = first_mark(queue, now, from);
    queue->lost = batch->start == NULL;
    batch->watch = queue->lost && queue->blind && learn;
    if (batch->watch)
        watch(queue);
    batch->first_ns = limiter->driver->now();
    batch->unknown = unknown;
    if (unknown)
        atomic_fetch_add_explicit(&limiter->unknown, 1, memory_order_relaxed);
    queue->open = batch;
    return true;
}

/* A step of the program's is over where the stream ran empty, but not while we hold a launch back. */
static void count_steps(struct stream_queue *queue, uint64_t now)
{
    if (queue->waiting.since_ns != 0 || queue->step == 0 || now < queue->tail_ns + QUEUE_GAP_NS)
        return;
    queue->usual = queue->step;
    queue->step = 0;
}

uint64_t queue_ask(struct stream_queue *queue, struct estimate *estimate, uint64_t now)
{
    struct limiter *limiter = queue->limiter;
    uint64_t ns = estimate_ns(estimate);
    struct grant grant;
    bool sample = ns != 0 && atomic_load_explicit(&limiter->sample, memory_order_relaxed) == estimate;
    count_steps(queue, now);
    queue->alone = ns == 0 || ns >= BATCH_NS || estimate_word(estimate) != ns;
    if (queue->open != NULL && (queue->alone || now >= queue->tail_ns + QUEUE_GAP_NS))
        queue_close(queue, false);
    uint64_t until = limiter_admit(limiter, &queue->waiting, ns, queue->alone ? 0 : AHEAD_NS, &grant);
    if (until != 0 && queue->open != NULL)
        queue_close(queue, false);
    if (until != 0)
        return until;
    if (sample)
        limiter_end_sample(limiter);
    if (queue->open == NULL && !begin(queue, ns == 0, ns == 0 || sample, queue->alone && estimate_can_wait(estimate) ? now : 0)) {
        budget_release(&limiter->budget, grant.reserved_ns);
        return 0;
    }
    queue->open->reserved_ns += grant.reserved_ns;
    queue->left_ns += grant.ns;
    extend_busy(limiter, (queue->tail_ns > now ? queue->tail_ns : now) + stretched(queue, queue->left_ns) + BUSY_MARGIN_NS);
    presence_begin(limiter->presence.own, presence_told(&limiter->presence, now));
    return 0;
}
