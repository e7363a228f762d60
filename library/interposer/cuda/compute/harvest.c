/* What was launched is measured, charged and published: see limiter.h. */
#include "settle.h"

/* An end that is reached no later than this after it was recorded may have followed an empty stream; the second is for a single launch. */
#define BACKLOG_NS UINT64_C(25000)
#define OVER_NS UINT64_C(2000)
/* No launch takes so long but one that waits. */
#define BLOCKING_NS UINT64_C(30000)
/* What is not exact is finished so much later: by then the neighbours have told most of what they did. */
#define LATER_NS UINT64_C(8000000)
#define TICK_NS UINT64_C(2000000)
#define TICK_RECENT_NS UINT64_C(20000000)
#define RECENT_NS UINT64_C(1000000000)

enum { LOOSE_BATCHES = 8 };

static struct region_device *device_of(const struct limiter *limiter)
{
    return &limiter->budget.region->devices[limiter->budget.device];
}

/* ---- one batch ---- */

/*
 * The time between the marks is the launches' own if the stream never ran empty: of one launch, if it was still at work when its end had been asked
 * for, or the call waited for it (CUDA_LAUNCH_BLOCKING); of several, if more than the last of them was. What is shorter than one launch's estimate is
 * always news.
 */
static bool is_exact(const struct batch *batch, uint64_t end, uint64_t own_ns)
{
    if (batch->mixed)
        return false;
    if (batch->count == 1)
        return batch->unknown || own_ns <= batch->estimated_ns || end > batch->end->told_ns + OVER_NS ||
               (batch->prompt && batch->closed_ns > batch->first_ns + BLOCKING_NS);
    return !batch->blurred && end > batch->end->told_ns + batch->alone_lag_ns + BACKLOG_NS;
}

/* A launch is not on the GPU before it was made, wherever the start was marked. */
static struct measured between_marks(struct limiter *limiter, const struct batch *batch, uint64_t now)
{
    uint64_t start = mark_time(batch->start), end = mark_time(batch->end);
    struct measured measured = {.stretch = {start > batch->first_ns ? start : batch->first_ns, end}};
    if (measured.stretch.end <= measured.stretch.start)
        measured.stretch.start = measured.stretch.end - 1;
    measured.own_ns = settle_share(limiter, measured.stretch, now);
    measured.exact = is_exact(batch, end, measured.own_ns);
    return measured;
}

static uint64_t stretched(const struct limiter *limiter, uint64_t ns)
{
    return ns * atomic_load_explicit(&limiter->stretch, memory_order_relaxed) >> 8;
}

/* Without an end: from where it began until its thread saw it done, or until now, to be shortened to what is expected of it. */
static struct measured on_the_host(struct limiter *limiter, const struct batch *batch, uint64_t now)
{
    struct measured measured = {.stretch = {batch->first_ns, batch->watched ? batch->closed_ns : now}, .exact = batch->watched};
    if (batch->start != NULL && mark_is_reached(batch->start) && mark_time(batch->start) > batch->first_ns)
        measured.stretch.start = mark_time(batch->start);
    if (measured.stretch.end <= measured.stretch.start)
        measured.stretch.start = measured.stretch.end - 1;
    measured.own_ns = settle_share(limiter, measured.stretch, now);
    return measured;
}

/* A launch of what could not be measured, another one each time. One that was not launched again since the last time is given up. */
static void choose_sample(struct limiter *limiter, const struct batch *batch)
{
    struct estimate *one = batch->launches[limiter->samples++ % batch->count];
    limiter_end_sample(limiter);
    if (estimate_word(one) != estimate_ns(one))
        return;
    estimate_set_alone(one, true);
    atomic_store(&limiter->sample, one);
}

/*
 * In a stream that runs empty between launches the stretch is more than the work: then the estimates count, and now and then a launch is measured alone.
 * Where there is no estimate the stretch stands: a launch is never free.
 */
static void shorten(struct limiter *limiter, const struct batch *batch, struct measured *measured, uint64_t now)
{
    if (measured->own_ns > batch->estimated_ns && batch->estimated_ns != 0) {
        uint64_t end = measured->stretch.start + batch->estimated_ns;
        if (limiter->divided) {
            end = presence_reach(&limiter->presence, measured->stretch, batch->estimated_ns, now, &limiter->edges);
            presence_draw(&limiter->presence, &limiter->edges);
        }
        measured->stretch.end = end > measured->stretch.start ? end : measured->stretch.start + 1;
        measured->own_ns = batch->estimated_ns;
        measured->estimated = true;
        measured->unplaced = batch->start == NULL;
    }
    if (++limiter->loose_batches >= LOOSE_BATCHES) {
        limiter->loose_batches = 0;
        choose_sample(limiter, batch);
    }
}

static void finish(struct limiter *limiter, struct batch *batch, bool marked, uint64_t now)
{
    struct measured measured = marked ? between_marks(limiter, batch, now) : on_the_host(limiter, batch, now);
    uint64_t reserved = batch->reserved_ns;
    bool unknown = batch->unknown;
    if (!measured.exact)
        shorten(limiter, batch, &measured, now);
    measured.bill = (struct waits_bill){measured.own_ns, measured.stretch.end, 0};
    if (measured.exact)
        measured.bill = waits_bill(limiter, batch, measured.stretch, measured.own_ns, now);
    mark_drop(batch->start);
    mark_drop(batch->end);
    if (measured.stretch.end > limiter->measured_until_ns)
        limiter->measured_until_ns = measured.stretch.end;
    /* Charge before release: in between the container looks poorer than it is, never richer. */
    settle_begin(limiter, batch, &measured, now);
    budget_release(&limiter->budget, reserved);
    if (unknown)
        atomic_fetch_sub_explicit(&limiter->unknown, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&limiter->measured, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&limiter->measured_unknown, unknown, memory_order_relaxed);
}

static void reserve_more(struct limiter *limiter, struct batch *batch, uint64_t wanted)
{
    if (wanted <= batch->reserved_ns)
        return;
    budget_reserve(&limiter->budget, wanted - batch->reserved_ns);
    batch->reserved_ns = wanted;
}

/* What was unknown when it was launched may have become known by others of its kind. */
static void reserve_known(struct limiter *limiter, struct batch *batch)
{
    if (batch->count == 1)
        reserve_more(limiter, batch, limiter_reservation(limiter, estimate_ns(batch->launches[0])));
}

/* It runs longer than was reserved for it: that much is known to be used already. Of a wait, what it will cost. */
static void reserve_overrun(struct limiter *limiter, struct batch *batch, uint64_t now)
{
    uint32_t stretch = atomic_load_explicit(&limiter->stretch, memory_order_relaxed);
    uint64_t most = now < batch->first_ns ? 0 : limiter_reservation(limiter, (now - batch->first_ns) * 256 / stretch);
    if (most <= batch->reserved_ns || mark_look(batch->start) != MARK_REACHED)
        return;
    uint64_t start = mark_time(batch->start) > batch->first_ns ? mark_time(batch->start) : batch->first_ns;
    if (now <= start)
        return;
    struct interval so_far = {start, now};
    struct waits_bill bill = waits_bill(limiter, batch, so_far, settle_share(limiter, so_far, now), now);
    reserve_more(limiter, batch, limiter_reservation(limiter, bill.work_ns + bill.waiting_ns));
}

/* ---- all of them ---- */

enum outcome { AHEAD, LATER, MARKED, UNMARKED };

static bool has_company(const struct limiter *limiter)
{
    const struct presence *presence = &limiter->presence;
    bool own_others = presence->row != NULL && atomic_load_explicit(&presence->row->slot_high, memory_order_relaxed) > 1;
    return limiter->divided && (presence->other_count > 0 || own_others);
}

/* What is not exact waits for the neighbours' measurements, if there are any. */
static enum outcome later(const struct limiter *limiter, const struct batch *batch, uint64_t now, enum outcome then)
{
    return has_company(limiter) && now < batch->closed_ns + LATER_NS ? LATER : then;
}

static enum outcome look(struct limiter *limiter, const struct batch *batch, uint64_t now)
{
    if (batch->watched)
        return UNMARKED;
    if (batch->start == NULL || batch->end == NULL)
        return now < batch->closed_ns + stretched(limiter, batch->estimated_ns) ? AHEAD : later(limiter, batch, now, UNMARKED);
    enum mark_state end = mark_look(batch->end);
    if (end == MARK_AHEAD)
        return AHEAD;
    if (end != MARK_REACHED || mark_look(batch->start) != MARK_REACHED)
        return UNMARKED;
    return is_exact(batch, mark_time(batch->end), UINT64_MAX) ? MARKED : later(limiter, batch, now, MARKED);
}

static void leave(struct limiter *limiter, const struct timebase **inside)
{
    CUcontext before;
    if (*inside != NULL)
        limiter->driver->context_pop(&before);
    *inside = NULL;
    atomic_store(&limiter->inside, NULL);
}

/*
 * The context that the next question needs, current on this thread. False: it is gone. The thread that ends it first says so and then looks for
 * this one; this one first says where it is and then looks whether the context is gone (contexts.c): one of the two sees the other.
 */
static bool enter(struct limiter *limiter, const struct timebase **inside, const struct batch *batch)
{
    const struct timebase *wanted = batch->start == NULL ? NULL : batch->start->timebase;
    if (wanted == NULL || wanted == *inside)
        return true;
    leave(limiter, inside);
    atomic_store(&limiter->inside, wanted);
    if (!atomic_load(&wanted->gone) && limiter->driver->context_push(wanted->context) == CUDA_SUCCESS)
        *inside = wanted;
    else
        atomic_store(&limiter->inside, NULL);
    return *inside == wanted;
}

static void collect(struct limiter *limiter)
{
    pthread_mutex_lock(&limiter->inbox_lock);
    if (limiter->inbox != NULL) {
        *limiter->pending_end = limiter->inbox;
        limiter->pending_end = limiter->inbox_end;
        limiter->inbox = NULL;
        limiter->inbox_end = &limiter->inbox;
    }
    pthread_mutex_unlock(&limiter->inbox_lock);
}

/* Queues whose oldest batch is not done, by a few bits of their number: a queue that shares them with a slow one is asked a turn later. */
static bool is_behind(uint64_t slow, const struct batch *batch)
{
    return (slow >> batch->queue % 64 & 1) != 0;
}

static void see_running(struct limiter *limiter, const struct batch *batch)
{
    uint64_t since = batch->start == NULL || mark_time(batch->start) < batch->first_ns ? batch->first_ns : mark_time(batch->start);
    if (limiter->running_since_ns == 0 || since < limiter->running_since_ns)
        limiter->running_since_ns = since;
}

/* It is still at work, or about to be. */
static void see_ahead(struct limiter *limiter, struct batch *batch, uint64_t now)
{
    if (limiter->ahead_since_ns == 0 || batch->first_ns < limiter->ahead_since_ns)
        limiter->ahead_since_ns = batch->first_ns;
    if (batch->start != NULL)
        reserve_overrun(limiter, batch, now);
    if (batch->start == NULL || mark_look(batch->start) == MARK_REACHED)
        see_running(limiter, batch);
}

static void measure(struct limiter *limiter, uint64_t now)
{
    const struct timebase *inside = NULL;
    struct batch **link = &limiter->pending;
    uint64_t slow = 0;
    limiter->ahead_since_ns = limiter->running_since_ns = 0;
    if (*link == NULL)
        return;
    /* An event query while another thread captures in global mode would invalidate that capture. */
    CUstreamCaptureMode mode = measuring_relax(limiter->driver);
    while (*link != NULL) {
        struct batch *batch = *link;
        bool behind = is_behind(slow, batch);
        enum outcome outcome = AHEAD;
        if (!behind)
            outcome = enter(limiter, &inside, batch) ? look(limiter, batch, now) : UNMARKED;
        if (outcome == MARKED || outcome == UNMARKED) {
            *link = batch->next;
            finish(limiter, batch, outcome == MARKED, now);
            continue;
        }
        if (outcome == AHEAD && !behind)
            see_ahead(limiter, batch, now);
        /* Batches of a queue end in order: what follows in it need not be asked, and each question is a driver call. */
        if (outcome == AHEAD)
            slow |= UINT64_C(1) << batch->queue % 64;
        reserve_known(limiter, batch);
        link = &batch->next;
    }
    limiter->pending_end = link;
    leave(limiter, &inside);
    measuring_restore(limiter->driver, mode);
}

/*
 * A long kernel is on the GPU while its owner launches nothing, or in other streams what was measured since; what waits in its stream is not. Before
 * anything is known to have begun, what was launched is taken to be there.
 */
static void publish(struct limiter *limiter, uint64_t now)
{
    uint64_t since = limiter->running_since_ns;
    if (limiter->ahead_since_ns != 0 && limiter->presence.row != NULL)
        atomic_store_explicit(&limiter->presence.row->wanted_ns, presence_told(&limiter->presence, now), memory_order_relaxed);
    if (since == 0 && atomic_load_explicit(&limiter->busy_until_ns, memory_order_relaxed) > now && limiter->presence.own != NULL) {
        since = atomic_load_explicit(&limiter->presence.own->busy_since_ns, memory_order_relaxed);
        since = since == 0 ? 0 : presence_heard(&limiter->presence, since);
        since = since != 0 && since < limiter->measured_until_ns ? limiter->measured_until_ns : since;
    }
    presence_busy(limiter->presence.own, since == 0 ? 0 : presence_told(&limiter->presence, since), presence_told(&limiter->presence, now));
}

static void harvest(struct limiter *limiter, uint64_t now)
{
    collect(limiter);
    measure(limiter, now);
    settle_due(limiter, now);
    publish(limiter, now);
    atomic_store_explicit(&limiter->held_since_ns, limiter->running_since_ns, memory_order_relaxed);
    atomic_store_explicit(&limiter->harvested_ns, now, memory_order_relaxed);
}

void limiter_harvest(struct limiter *limiter, bool wait)
{
    if (wait)
        pthread_mutex_lock(&limiter->harvest_lock);
    else if (pthread_mutex_trylock(&limiter->harvest_lock) != 0)
        return;
    harvest(limiter, limiter->driver->now());
    pthread_mutex_unlock(&limiter->harvest_lock);
}

/* ---- the helper's turn ---- */

/* A process that cannot read its neighbours borrows nothing. */
static uint32_t rate_now(struct limiter *limiter, uint64_t now)
{
    struct share others[PRESENCE_ROWS], own = {.cores = atomic_load_explicit(&limiter->cores, memory_order_relaxed), .wanted_ns = now};
    if (limiter->neighbours.readable)
        own.soft_cores = atomic_load_explicit(&limiter->soft_cores, memory_order_relaxed);
    neighbours_judge(&limiter->neighbours, own, now);
    for (unsigned i = 0; i < limiter->neighbours.count; i++)
        others[i] = limiter->neighbours.found[i].share;
    return borrow_rate(own, others, limiter->neighbours.count, now);
}

uint64_t limiter_tick(struct limiter *limiter)
{
    pthread_mutex_lock(&limiter->harvest_lock);
    uint64_t now = limiter->driver->now();
    neighbours_look(&limiter->neighbours, now, &limiter->presence);
    /* The time is read again: reading the neighbours' files may have taken long. */
    uint32_t rate = rate_now(limiter, limiter->driver->now());
    atomic_store_explicit(&limiter->budget.rate, rate, memory_order_relaxed);
    atomic_store_explicit(&device_of(limiter)->effective_cores, rate, memory_order_relaxed);
    harvest(limiter, now);
    bool waiting = limiter->pending != NULL, settling = limiter->correction_count > 0 || limiter->settling != NULL;
    pthread_mutex_unlock(&limiter->harvest_lock);
    /* A thread that begins a batch first says until when and then looks for a sleeper (stream_queue.c): one of the two sees the other. */
    atomic_store(&limiter->asleep, true);
    uint64_t busy_until = atomic_load(&limiter->busy_until_ns);
    if (!waiting && !settling && busy_until + RECENT_NS <= now)
        return UINT64_MAX;
    atomic_store(&limiter->asleep, false);
    return now + (waiting || busy_until > now ? TICK_NS : TICK_RECENT_NS);
}
