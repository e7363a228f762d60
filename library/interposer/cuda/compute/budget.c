/* See budget.h. A process that is killed at it loses what it was crediting; its estimates vanish with its slot. */
#include "budget.h"

#include <stdbool.h>

/* Refills closer together than this would only contend for the word. */
#define STEP_NS UINT64_C(20000)
/* A time so far ahead comes from before a reboot, or from nowhere. */
#define FUTURE_NS UINT64_C(1000000000)

static uint32_t rate_of(const struct budget *budget)
{
    uint32_t rate = atomic_load_explicit(&budget->rate, memory_order_relaxed);
    return rate < BUDGET_LEAST ? BUDGET_LEAST : rate;
}

/* What 50 ms of wall time pay can be saved up, at least 20 ms, so that short pauses of the application cost it nothing. */
int64_t budget_cap(uint32_t rate)
{
    int64_t cap = INT64_C(50000000) * rate / BUDGET_WHOLE;
    return cap < 20000000 ? 20000000 : cap;
}

/* More than an hour is no estimate but a word that was written over. */
static uint64_t sane(uint64_t ns)
{
    return ns > UINT64_C(3600) * 1000000000 ? 0 : ns;
}

uint64_t budget_inflight(const struct budget *budget)
{
    const struct region *region = budget->region;
    uint32_t high = atomic_load_explicit(&region->slot_high, memory_order_acquire);
    uint64_t sum = 0;
    bool own = false;
    for (uint32_t i = 0; i < high && i < REGION_SLOTS; i++) {
        const struct region_slot *slot = &region->slots[i];
        own = own || &slot->use[budget->device] == budget->own;
        if (atomic_load_explicit(&slot->pid, memory_order_relaxed) != 0)
            sum += sane(atomic_load_explicit(&slot->use[budget->device].inflight_ns, memory_order_acquire));
    }
    return own ? sum : sum + sane(atomic_load_explicit(&budget->own->inflight_ns, memory_order_acquire));
}

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* The word may be of another clock; what passed on our own is certain. The first time there is no other measure than the word. */
static uint64_t elapsed_here(struct budget *budget, uint64_t now)
{
    uint64_t before = atomic_exchange_explicit(&budget->credited_ns, now, memory_order_relaxed);
    return before == 0 ? UINT64_MAX : now > before ? now - before : 0;
}

/* The wall time that this caller, and nobody else, credits. */
static uint64_t claim_time(struct budget *budget, struct region_device *device, uint64_t now)
{
    uint64_t last = atomic_load_explicit(&device->refilled_ns, memory_order_acquire);
    for (;;) {
        bool fresh = last == 0 || last > now + FUTURE_NS;
        if (!fresh && now < last + STEP_NS)
            return 0;
        /* One process wins each span of time: it is credited once, whichever processes refill at the same moment. */
        if (atomic_compare_exchange_weak_explicit(&device->refilled_ns, &last, now, memory_order_acq_rel, memory_order_acquire))
            return smaller(elapsed_here(budget, now), fresh ? 0 : now - last);
    }
}

/* Both bounds hold whatever the container wrote into the word: neither a stock of credit nor a debt of hours. */
static int64_t clamp(int64_t balance, int64_t most)
{
    if (balance > most)
        return most;
    return balance < BUDGET_FLOOR_NS ? BUDGET_FLOOR_NS : balance;
}

int64_t budget_refill(struct budget *budget, uint64_t now)
{
    struct region_device *device = &budget->region->devices[budget->device];
    uint32_t rate = rate_of(budget);
    uint64_t elapsed = claim_time(budget, device, now);
    int64_t credit = (int64_t)((double)elapsed * rate / BUDGET_WHOLE);
    /* What is measured is charged first and released then: a reader in this order that finds the balance unchanged has missed nothing. */
    int64_t balance = atomic_load_explicit(&device->balance_ns, memory_order_acquire);
    int64_t inflight, wanted;
    do {
        inflight = (int64_t)budget_inflight(budget);
        /* Reservations are still in the balance, so they do not count towards what is saved up. */
        int64_t most = budget_cap(rate) + inflight;
        wanted = clamp(clamp(balance, most) + credit, most);
    } while (wanted != balance && !atomic_compare_exchange_weak_explicit(&device->balance_ns, &balance, wanted, memory_order_acq_rel,
                                                                          memory_order_acquire));
    return wanted - inflight;
}

void budget_reserve(struct budget *budget, uint64_t ns)
{
    atomic_fetch_add_explicit(&budget->own->inflight_ns, ns, memory_order_acq_rel);
}

void budget_release(struct budget *budget, uint64_t ns)
{
    /* Ends at 0: the container can write this word, and an underflow would hide later reservations. */
    uint64_t inflight = atomic_load_explicit(&budget->own->inflight_ns, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&budget->own->inflight_ns, &inflight, inflight < ns ? 0 : inflight - ns,
                                                  memory_order_acq_rel, memory_order_relaxed))
        ;
}

void budget_charge(struct budget *budget, int64_t ns)
{
    atomic_fetch_sub_explicit(&budget->region->devices[budget->device].balance_ns, ns, memory_order_acq_rel);
}

uint64_t budget_wait(const struct budget *budget, int64_t ns)
{
    return ns <= 0 ? 0 : (uint64_t)((double)ns * BUDGET_WHOLE / rate_of(budget)) + 1;
}
