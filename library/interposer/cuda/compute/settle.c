/* See settle.h. */
#include "settle.h"

/* The neighbours' measurements of a moment are there so long after it, unless a kernel of theirs still runs. */
#define SETTLE_NS UINT64_C(40000000)
/* An estimate that is so far off cannot wait for them. */
#define FAR_OFF 2.0

uint64_t settle_share(struct limiter *limiter, struct interval part, uint64_t now)
{
    if (!limiter->divided)
        return part.end - part.start;
    return presence_share(&limiter->presence, part, now, &limiter->edges);
}

/* ---- charges ---- */

/* With what the neighbours have told by now, for good. */
static uint64_t final_share(struct limiter *limiter, struct interval part, uint64_t now)
{
    uint64_t share = settle_share(limiter, part, now);
    if (limiter->divided)
        presence_draw(&limiter->presence, &limiter->edges);
    return share;
}

/* Where other work was measured meanwhile it is paid for already. */
static uint64_t cost_of_wait(struct limiter *limiter, struct interval part, uint64_t now)
{
    unsigned parts = interval_set_add(&limiter->charged_time, part, limiter->parts);
    uint64_t cost = 0;
    for (unsigned i = 0; i < parts; i++)
        cost += waits_cost(limiter, limiter->parts[i], final_share(limiter, limiter->parts[i], now));
    return cost;
}

static uint64_t cost_now(struct limiter *limiter, const struct correction *correction, uint64_t now)
{
    if (correction->waited)
        return cost_of_wait(limiter, correction->part, now);
    return correction->final ? correction->charged_ns : final_share(limiter, correction->part, now);
}

static void correct(struct limiter *limiter, uint64_t now)
{
    const struct correction *correction = &limiter->corrections[limiter->correction_first];
    struct region_device *device = &limiter->budget.region->devices[limiter->budget.device];
    uint64_t used = cost_now(limiter, correction, now);
    budget_charge(&limiter->budget, (int64_t)used - (int64_t)correction->charged_ns);
    atomic_fetch_add_explicit(&device->charged_ns, used, memory_order_relaxed);
    if (limiter->presence.row != NULL)
        atomic_fetch_add_explicit(&limiter->presence.row->charged_ns, used, memory_order_relaxed);
    limiter->correction_first = (limiter->correction_first + 1) % CORRECTIONS;
    limiter->correction_count--;
}

static void add_charge(struct limiter *limiter, struct correction added, uint64_t now)
{
    if (limiter->correction_count == CORRECTIONS)
        correct(limiter, now);
    limiter->corrections[(limiter->correction_first + limiter->correction_count++) % CORRECTIONS] = added;
    budget_charge(&limiter->budget, (int64_t)added.charged_ns);
}

static uint64_t charge(struct limiter *limiter, struct interval part, const struct measured *measured, uint64_t now)
{
    double length = (double)(measured->stretch.end - measured->stretch.start);
    struct correction added = {.part = part, .final = measured->estimated};
    added.charged_ns = measured->estimated ? (uint64_t)((double)measured->own_ns * (double)(part.end - part.start) / length)
                                           : settle_share(limiter, part, now);
    add_charge(limiter, added, now);
    return added.charged_ns;
}

static uint64_t charge_work(struct limiter *limiter, const struct measured *measured, uint64_t now)
{
    struct interval work = {measured->stretch.start, measured->bill.work_until}, parts[INTERVAL_SET_MOST + 1];
    if (measured->unplaced)
        return charge(limiter, work, measured, now);
    unsigned count = interval_set_add(&limiter->charged_time, work, parts);
    uint64_t charged = 0;
    for (unsigned i = 0; i < count; i++)
        charged += charge(limiter, parts[i], measured, now);
    return charged;
}

static void charge_part_of_wait(struct limiter *limiter, struct interval part, uint64_t now)
{
    struct interval parts[INTERVAL_SET_MOST + 1];
    unsigned count = interval_set_new_parts(&limiter->charged_time, part, parts);
    for (unsigned i = 0; i < count; i++)
        add_charge(limiter, (struct correction){parts[i], waits_cost(limiter, parts[i], settle_share(limiter, parts[i], now)), false, true}, now);
}

/* What is measured later may have been at work meanwhile: it is charged in full, and this is corrected. */
static void charge_wait(struct limiter *limiter, struct interval wait, uint64_t now)
{
    struct interval parts[INTERVAL_SET_MOST + 1];
    unsigned count = interval_set_add(&limiter->waited_time, wait, parts);
    for (unsigned i = 0; i < count; i++)
        charge_part_of_wait(limiter, parts[i], now);
}

/* A launch that waits is on the GPU, and takes its turns. */
static void publish(struct limiter *limiter, struct interval stretch)
{
    unsigned parts = interval_set_add(&limiter->published_time, stretch, limiter->parts);
    for (unsigned i = 0; i < parts; i++)
        presence_publish(limiter->presence.own, (struct interval){presence_told(&limiter->presence, limiter->parts[i].start),
                                                                  presence_told(&limiter->presence, limiter->parts[i].end)});
}

/* Streams that run side by side are charged once: of what each launch takes, so much is new. Over the last dozens of batches. */
static void see_overlap(struct limiter *limiter, uint64_t charged_ns, uint64_t own_ns)
{
    limiter->recent_charged = limiter->recent_charged * 15 / 16 + (double)charged_ns;
    limiter->recent_own = limiter->recent_own * 15 / 16 + (double)own_ns;
    double part = limiter->recent_own < 1 ? 1 : limiter->recent_charged / limiter->recent_own;
    atomic_store_explicit(&limiter->overlap, part > 1 ? 256 : part < 1.0 / 16 ? 16 : (uint32_t)(part * 256), memory_order_relaxed);
}

/* ---- estimates ---- */

/* Each launch once, against what is known now, not what was known then: many batches may have been made with the same wrong estimate. */
static void learn_several(const struct batch *batch, double scale)
{
    struct estimate *different[BATCH_LAUNCHES];
    unsigned count = 0;
    for (unsigned i = 0; i < batch->count; i++) {
        unsigned place = 0;
        while (place < count && different[place] != batch->launches[i])
            place++;
        if (place == count)
            different[count++] = batch->launches[i];
    }
    for (unsigned i = 0; i < count; i++)
        estimate_scale(different[i], scale);
}

static double off_by(const struct batch *batch, uint64_t own_ns)
{
    uint64_t known = 0;
    for (unsigned i = 0; i < batch->count; i++)
        known += estimate_ns(batch->launches[i]);
    return (double)own_ns / (double)(known == 0 ? 1 : known);
}

static void learn(const struct batch *batch, uint64_t own_ns)
{
    if (batch->count == 1)
        estimate_learn(batch->launches[0], own_ns);
    else
        learn_several(batch, off_by(batch, own_ns));
}

/* What is learned is what is charged: an estimate is reserved, and a wait that were reserved in full would hold back like one that is charged in full. */
static void learn_at_once(struct limiter *limiter, const struct batch *batch, const struct measured *measured)
{
    uint64_t cost = measured->bill.work_ns + measured->bill.waiting_ns;
    double off = off_by(batch, cost);
    if (off > FAR_OFF || off < 1 / FAR_OFF)
        learn(batch, cost);
    waits_see(batch, measured->own_ns);
    double stretch = (double)(measured->stretch.end - measured->stretch.start) / (double)(measured->own_ns == 0 ? 1 : measured->own_ns);
    uint32_t before = atomic_load_explicit(&limiter->stretch, memory_order_relaxed);
    double bounded = stretch > 64 ? 64 : stretch < 1 ? 1 : stretch;
    atomic_store_explicit(&limiter->stretch, (uint32_t)(before * 0.75 + bounded * 256 * 0.25 + 0.5), memory_order_relaxed);
}

static void learn_late(struct limiter *limiter, uint64_t now)
{
    struct batch *batch = limiter->settling;
    limiter->settling = batch->next;
    if (limiter->settling == NULL)
        limiter->settling_end = &limiter->settling;
    limiter->settling_count--;
    uint64_t own = settle_share(limiter, batch->stretch, now);
    struct waits_bill bill = waits_bill(limiter, batch, batch->stretch, own, now);
    learn(batch, bill.work_ns + bill.waiting_ns);
    waits_learn(batch, own);
    limiter_free_batch(limiter, batch);
}

/* ---- both ---- */

void settle_begin(struct limiter *limiter, struct batch *batch, const struct measured *measured, uint64_t now)
{
    if (limiter->last_queue != 0 && batch->queue != limiter->last_queue)
        atomic_store_explicit(&limiter->switched_ns, now, memory_order_relaxed);
    limiter->last_queue = batch->queue;
    uint64_t charged = charge_work(limiter, measured, now);
    charge_wait(limiter, (struct interval){measured->bill.work_until, measured->stretch.end}, now);
    publish(limiter, measured->stretch);
    see_overlap(limiter, charged, measured->bill.work_ns);
    if (!measured->exact) {
        limiter_free_batch(limiter, batch);
        return;
    }
    learn_at_once(limiter, batch, measured);
    batch->stretch = measured->stretch;
    batch->next = NULL;
    *limiter->settling_end = batch;
    limiter->settling_end = &batch->next;
    if (++limiter->settling_count > CORRECTIONS)
        learn_late(limiter, now);
}

void settle_due(struct limiter *limiter, uint64_t now)
{
    while (limiter->correction_count > 0 && limiter->corrections[limiter->correction_first].part.end + SETTLE_NS <= now)
        correct(limiter, now);
    while (limiter->settling != NULL && limiter->settling->stretch.end + SETTLE_NS <= now)
        learn_late(limiter, now);
}
