/* See waits.h. */
#include "waits.h"

/* Less than this is not worth two marks, and can be an error of measurement beside others on the GPU. */
#define SHORT_NS UINT64_C(1000000)
/* A batch that took so much longer than expected has something in it that waited. */
#define OUTLIER_TIMES 2
/* Beyond the least: a sixteenth, for what is inexact. */
#define INEXACT_PART 16
/* So slowly what became longer for good is taken for work: a doubling in 45 launches. */
#define FORGET_PART 64
/* Measured alone so often without a wait, a launch is measured with others again. */
enum { CALM = 64 };

/*
 * The launch, if it was measured alone and can wait. What a thread watched is not: nobody knows when it began, and of launches of several streams, which
 * the GPU ran one after the other, all but the first would seem to have waited.
 */
static struct estimate *alone(const struct batch *batch)
{
    return batch->count == 1 && !batch->watched && estimate_can_wait(batch->launches[0]) ? batch->launches[0] : NULL;
}

static uint64_t least_of(const struct estimate *estimate)
{
    return atomic_load_explicit(&estimate->least_ns, memory_order_relaxed);
}

static bool has_waited(const struct estimate *estimate, uint64_t own_ns)
{
    uint64_t least = least_of(estimate);
    return least != 0 && own_ns / WAITS_FROM > least && own_ns > least + SHORT_NS;
}

/* UINT64_MAX: all of it. */
static uint64_t work_of(const struct estimate *estimate, uint64_t own_ns)
{
    uint64_t least = least_of(estimate);
    if (least == 0)
        return WAITS_UNKNOWN_NS;
    if (!atomic_load_explicit(&estimate->waits, memory_order_relaxed) && !has_waited(estimate, own_ns))
        return UINT64_MAX;
    return least + least / INEXACT_PART;
}

/* Of several, what they may take if none waits. */
static uint64_t most_of(const struct batch *batch)
{
    for (unsigned i = 0; i < batch->count && !batch->watched; i++) {
        if (estimate_can_wait(batch->launches[i]))
            return batch->estimated_ns * OUTLIER_TIMES + SHORT_NS;
    }
    return UINT64_MAX;
}

static double rate_of(const struct limiter *limiter)
{
    return (double)atomic_load_explicit(&limiter->budget.rate, memory_order_relaxed) / BUDGET_WHOLE;
}

uint64_t waits_cost(const struct limiter *limiter, struct interval part, uint64_t own_ns)
{
    uint64_t cost = (uint64_t)((double)(part.end - part.start) * WAITING_TIMES * rate_of(limiter));
    return cost < own_ns ? cost : own_ns;
}

struct waits_bill waits_bill(struct limiter *limiter, const struct batch *batch, struct interval stretch, uint64_t own_ns, uint64_t now)
{
    const struct estimate *estimate = alone(batch);
    uint64_t work = estimate != NULL ? work_of(estimate, own_ns) : most_of(batch);
    if (own_ns <= work || WAITING_TIMES * rate_of(limiter) >= 1)
        return (struct waits_bill){own_ns, stretch.end, 0};
    uint64_t until = stretch.start + work;
    if (limiter->divided)
        until = presence_reach(&limiter->presence, stretch, work, now, &limiter->edges);
    if (until > stretch.end)
        until = stretch.end;
    return (struct waits_bill){work, until, waits_cost(limiter, (struct interval){until, stretch.end}, own_ns - work)};
}

static void suspect(const struct batch *batch)
{
    for (unsigned i = 0; i < batch->count; i++) {
        if (!estimate_can_wait(batch->launches[i]))
            continue;
        estimate_set_alone(batch->launches[i], true);
        atomic_store_explicit(&batch->launches[i]->calm, 0, memory_order_relaxed);
    }
}

static void see_alone(struct estimate *estimate, uint64_t own_ns)
{
    uint64_t least = least_of(estimate);
    if (least == 0 || own_ns < least)
        atomic_store_explicit(&estimate->least_ns, own_ns == 0 ? 1 : own_ns, memory_order_relaxed);
}

void waits_see(const struct batch *batch, uint64_t own_ns)
{
    struct estimate *estimate = alone(batch);
    if (estimate != NULL)
        see_alone(estimate, own_ns);
    else if (own_ns > most_of(batch))
        suspect(batch);
}

static void count_calm(struct estimate *estimate, bool calm)
{
    uint32_t count = calm ? atomic_load_explicit(&estimate->calm, memory_order_relaxed) + 1 : 0;
    atomic_store_explicit(&estimate->calm, count, memory_order_relaxed);
    if (count >= CALM)
        estimate_set_alone(estimate, false);
}

void waits_learn(const struct batch *batch, uint64_t own_ns)
{
    struct estimate *estimate = alone(batch);
    if (estimate == NULL)
        return;
    if (has_waited(estimate, own_ns)) {
        atomic_store_explicit(&estimate->waits, true, memory_order_relaxed);
        estimate_set_alone(estimate, true);
    }
    see_alone(estimate, own_ns);
    uint64_t least = least_of(estimate), grown = least + least / FORGET_PART + 1;
    if (own_ns > least)
        atomic_store_explicit(&estimate->least_ns, grown < own_ns ? grown : own_ns, memory_order_relaxed);
    count_calm(estimate, own_ns <= 2 * least);
}
