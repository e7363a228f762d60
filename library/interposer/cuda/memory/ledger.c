/*
 * The ledger; see ledger.h.
 *
 * Why it holds. A taker adds to `pending` before it sums, and its bytes enter `used` before they leave `pending`, while a reader looks at
 * `pending` first: so of two takers at least one sees the other, and nobody's bytes are ever between the two words. A taker that was granted
 * after my reservation counted mine; one that was granted before it is in my sum.
 *
 * Two takers that see each other and do not both fit step back and try again after unequal pauses. A sum over slots is not one instant:
 * bytes that one process gave back and another took in between would count twice. A refusal therefore needs two equal readings in a row.
 */
#include "ledger.h"

#include <sched.h>
#include <time.h>

enum outcome { TAKEN, FULL, TORN, CONTENDED };

struct reading {
    uint64_t settled;       /* given out, and overhead */
    uint64_t pending;
    uint64_t mark;          /* equal marks: no slot's settled bytes changed */
};

static void add_slot(struct reading *all, const struct region_use *use)
{
    uint64_t pending = atomic_load(&use->pending);
    uint64_t settled = atomic_load(&use->used) + atomic_load(&use->overhead);

    all->pending += pending;
    all->settled += settled;
    all->mark = all->mark * UINT64_C(0x9E3779B97F4A7C15) + settled;
}

static struct reading read_all(const struct region *region, const struct region_slot *own, unsigned device)
{
    struct reading all = {0};
    uint32_t high = atomic_load_explicit(&region->slot_high, memory_order_acquire);

    if (high > REGION_SLOTS)
        high = REGION_SLOTS;
    for (uint32_t i = 0; i < high; i++)
        add_slot(&all, &region->slots[i].use[device]);
    if (own < region->slots || own >= region->slots + REGION_SLOTS)
        add_slot(&all, &own->use[device]);
    return all;
}

static bool fits(uint64_t have, uint64_t more, uint64_t limit)
{
    return have <= limit && more <= limit - have;
}

static void raise_peak(struct region *region, unsigned device, uint64_t bytes)
{
    _Atomic uint64_t *peak = &region->devices[device].peak;
    uint64_t known = atomic_load_explicit(peak, memory_order_relaxed);

    while (known < bytes && !atomic_compare_exchange_weak_explicit(peak, &known, bytes, memory_order_relaxed, memory_order_relaxed))
        ;
}

static enum outcome why_not(const struct region *region, const struct region_slot *own, unsigned device, const struct reading *now, uint64_t bytes,
                            uint64_t limit)
{
    if (fits(now->settled, bytes, limit))
        return CONTENDED;
    return read_all(region, own, device).mark == now->mark ? FULL : TORN;
}

static uint64_t own_word(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* Of a word that only who holds the lock writes: what was stored before is seen by who sees this. */
static void add(_Atomic uint64_t *word, uint64_t more)
{
    atomic_store_explicit(word, own_word(word) + more, memory_order_release);
}

/* Ends at 0: the container can write the word, and a slot may be another one than that in which it was counted. */
static void subtract(_Atomic uint64_t *word, uint64_t bytes)
{
    uint64_t known = own_word(word);

    atomic_store_explicit(word, known > bytes ? known - bytes : 0, memory_order_release);
}

/* Sequentially consistent, as the sum that follows: the one order here that a processor does not keep by itself. */
static void reserve(struct region_use *use, uint64_t bytes)
{
    atomic_store(&use->pending, own_word(&use->pending) + bytes);
}

static void settle(struct ledger_own *mine, struct region_use *use, uint64_t bytes)
{
    add(&mine->takes, 1);
    add(&mine->bytes, bytes);
    add(&use->used, bytes);
    add(&mine->taken, bytes);
}

static enum outcome try_to_take(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes,
                                uint64_t limit)
{
    struct region_use *use = &own->use[device];

    if (!fits(own_word(&mine->bytes), bytes, limit))
        return FULL;
    reserve(use, bytes);
    struct reading now = read_all(region, own, device);
    bool granted = fits(now.settled, now.pending, limit);
    if (granted)
        settle(mine, use, bytes);
    subtract(&use->pending, bytes);
    if (!granted)
        return why_not(region, own, device, &now, bytes, limit);
    raise_peak(region, device, now.settled + bytes);
    return TAKEN;
}

/* Nobody has anything; who reserves at the same time may be the first as well. */
static enum outcome try_to_reserve(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes,
                                   uint64_t limit)
{
    struct region_use *use = &own->use[device];

    (void)mine;
    reserve(use, bytes);
    struct reading now = read_all(region, own, device);
    bool others_reserve = now.pending > atomic_load(&use->pending);
    if (fits(now.settled, now.pending, limit) || (now.settled == 0 && !others_reserve))
        return TAKEN;
    subtract(&use->pending, bytes);
    return now.settled != 0 ? why_not(region, own, device, &now, bytes, limit) : CONTENDED;
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Longer and longer, up to a millisecond, and unequal: the clock's low digits differ between takers. */
static void step_back(unsigned attempt, uint64_t now_ns)
{
    if (attempt < 4) {
        sched_yield();
        return;
    }
    uint64_t most = attempt < 12 ? UINT64_C(4000) << (attempt - 4) : UINT64_C(1000000);
    uint64_t pause_ns = 1000 + (now_ns * UINT64_C(0x9E3779B97F4A7C15) >> 32) % most;
    nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
}

/* Decides what `outcome` means to who waits since `*since_ns`, 0 at first. False: that is the answer. */
static bool again(enum outcome outcome, unsigned count, uint64_t patience_ns, uint64_t *since_ns, ledger_reaper *reap)
{
    uint64_t now_ns;

    if (outcome == TAKEN || outcome == FULL)
        return false;
    now_ns = monotonic_ns();
    if (*since_ns == 0)
        *since_ns = now_ns;
    if (now_ns - *since_ns >= patience_ns)
        return false;
    if (reap != NULL && outcome == CONTENDED && count % 16 == 15)
        reap();
    step_back(count, now_ns);
    return true;
}

typedef enum outcome attempt(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes,
                             uint64_t limit);

static inline enum outcome locked(attempt *once, struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device,
                                  uint64_t bytes, uint64_t limit)
{
    short_lock_take(&mine->lock);
    enum outcome outcome = once(mine, region, own, device, bytes, limit);
    short_lock_give(&mine->lock);
    return outcome;
}

bool ledger_take(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes, uint64_t limit,
                 ledger_reaper *reap)
{
    uint64_t since_ns = 0;
    enum outcome outcome;
    unsigned count = 0;

    do
        outcome = locked(try_to_take, mine, region, own, device, bytes, limit);
    while (again(outcome, count++, LEDGER_PATIENCE_NS, &since_ns, reap));
    return outcome == TAKEN;
}

bool ledger_reserve(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes, uint64_t limit,
                    ledger_reaper *reap)
{
    uint64_t since_ns = 0;
    enum outcome outcome;
    unsigned count = 0;

    do
        outcome = locked(try_to_reserve, mine, region, own, device, bytes, limit);
    while (again(outcome, count++, LEDGER_CONTEXT_PATIENCE_NS, &since_ns, reap));
    return outcome == TAKEN;
}

void ledger_unreserve(struct ledger_own *mine, struct region_slot *own, unsigned device, uint64_t bytes)
{
    short_lock_take(&mine->lock);
    subtract(&own->use[device].pending, bytes);
    short_lock_give(&mine->lock);
}

void ledger_record(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes)
{
    short_lock_take(&mine->lock);
    add(&own->use[device].used, bytes);
    add(&mine->bytes, bytes);
    add(&mine->taken, bytes);
    short_lock_give(&mine->lock);
    raise_peak(region, device, read_all(region, own, device).settled);
}

void ledger_give(struct ledger_own *mine, struct region_slot *own, unsigned device, uint64_t bytes)
{
    short_lock_take(&mine->lock);
    subtract(&mine->bytes, bytes);
    subtract(&own->use[device].used, bytes);
    add(&mine->gives, 1);
    short_lock_give(&mine->lock);
}
