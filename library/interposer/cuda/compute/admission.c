/* Who may launch now: see limiter.h for the rule. */
#include "limiter.h"

/* A launch that had to wait goes with so much to spare, so that threads do not wake for each small kernel: 4 ms of wall time. */
#define QUANTUM_NS INT64_C(1000000)
#define QUANTUM_WALL_NS INT64_C(4000000)
/*
 * Where streams run side by side (256ths, as `overlap`), a thread that is held back in the midst of one stream's launches does not fill the others. So
 * there a pause is longer, and pays for launches in all of them. Whether they do is not seen where short pauses keep them apart: so if a process uses
 * several streams, all pauses are long for a while, again and again.
 */
#define APART 192
#define GATHER_WALL_NS 32000000
#define SEVERAL_NS UINT64_C(100000000)
#define PROBE_NS UINT64_C(128000000)
#define PROBE_EACH_NS UINT64_C(2000000000)
/* Who waited longer goes first: waiting lowers the bar, a little. */
#define AGE_PART INT64_C(16)
#define AGE_MOST_NS INT64_C(10000000)

/* Patience lessens with what was waited: 1.5 ms for each turn of somebody else, over 64 turns. */
#define PATIENCE_PART 160
#define PATIENCE_LESS_NS UINT64_C(100000000)

#define SLICE_NS UINT64_C(50000000)         /* the limits may change */
#define SLICE_MEASURING_NS UINT64_C(3000000) /* estimates may turn out too high */
#define SLICE_LEAST_NS UINT64_C(50000)
#define POLL_NS UINT64_C(100000)
#define POLL_MOST_NS UINT64_C(1000000)
#define HARVEST_NS UINT64_C(2000000)

static int64_t credit(const struct limiter *limiter, int64_t wall_ns)
{
    uint32_t rate = atomic_load_explicit(&limiter->budget.rate, memory_order_relaxed);
    return (int64_t)((double)wall_ns * rate / BUDGET_WHOLE);
}

static struct region_device *device_of(const struct limiter *limiter)
{
    return &limiter->budget.region->devices[limiter->budget.device];
}

/* A launch of the container, a measurement of this process. */
static uint64_t movement(const struct limiter *limiter)
{
    return atomic_load_explicit(&device_of(limiter)->launches, memory_order_relaxed) +
           atomic_load_explicit(&limiter->measured, memory_order_relaxed);
}

static void remember(const struct limiter *limiter, struct waiting *waiting, int64_t available, uint64_t now)
{
    waiting->checked_ns = now;
    waiting->checked_available = available;
    waiting->checked_count = movement(limiter);
    waiting->checked_unknown = atomic_load_explicit(&limiter->measured_unknown, memory_order_relaxed);
}

/* When a launch goes if nothing moves until then. Of several that saw the same last movement the one that has waited longest is first. */
static uint64_t patience_until(const struct waiting *waiting, uint64_t now)
{
    uint64_t waited = now - waiting->since_ns, less = waited < PATIENCE_NS ? 0 : (waited - PATIENCE_NS) / PATIENCE_PART;
    return waiting->checked_ns + PATIENCE_NS - (less < PATIENCE_LESS_NS ? less : PATIENCE_LESS_NS);
}

static bool stuck(const struct limiter *limiter, struct waiting *waiting, int64_t available, bool moved, uint64_t now)
{
    if (waiting->since_ns == 0)
        return false;
    if (moved)
        remember(limiter, waiting, available, now);
    return !moved && now >= patience_until(waiting, now);
}

/* In debt: progress is that a good part of what the limit pays was paid, or that anything moved. */
static bool stuck_in_debt(const struct limiter *limiter, struct waiting *waiting, int64_t available, uint64_t now)
{
    int64_t paid = available - waiting->checked_available;
    bool moved = movement(limiter) != waiting->checked_count || paid >= credit(limiter, (int64_t)PATIENCE_NS) / 4;
    return stuck(limiter, waiting, available, moved, now);
}

static bool is_endless(const struct limiter *limiter, uint64_t now)
{
    uint64_t since = atomic_load_explicit(&limiter->held_since_ns, memory_order_relaxed);
    return since != 0 && now >= since + ENDLESS_NS;
}

/* What it costs is charged as ever: only if something else is charged meanwhile, the launch that does not end, is this more than the limit. */
static bool goes_beside(struct limiter *limiter, uint64_t expected_ns, uint64_t now)
{
    uint64_t next = atomic_load_explicit(&limiter->beside_ns, memory_order_relaxed);
    if (expected_ns == 0 || now < next || !is_endless(limiter, now))
        return false;
    return atomic_compare_exchange_strong(&limiter->beside_ns, &next, now + budget_wait(&limiter->budget, (int64_t)expected_ns));
}

/* Behind launches of unknown cost only a measurement of one of them helps: the container's other launches may never end. */
static bool stuck_unknown(const struct limiter *limiter, struct waiting *waiting, int64_t available, uint64_t now)
{
    bool moved = atomic_load_explicit(&limiter->measured_unknown, memory_order_relaxed) != waiting->checked_unknown;
    return stuck(limiter, waiting, available, moved, now);
}

static void account(struct limiter *limiter, struct waiting *waiting, uint64_t now)
{
    struct region_device *device = device_of(limiter);
    if (waiting->since_ns == 0)
        atomic_fetch_add_explicit(&device->throttled_launches, 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&device->throttled_ns, now - waiting->accounted_ns, memory_order_relaxed);
    waiting->accounted_ns = now;
}

static uint64_t wait_for(struct limiter *limiter, struct waiting *waiting, int64_t available, uint64_t now, uint64_t wall_ns)
{
    account(limiter, waiting, now);
    if (waiting->since_ns == 0) {
        waiting->since_ns = now;
        remember(limiter, waiting, available, now);
    }
    uint64_t until = now + (wall_ns < SLICE_LEAST_NS ? SLICE_LEAST_NS : wall_ns), patience = patience_until(waiting, now);
    return until > patience && patience > now ? patience : until;
}

static int64_t bar(const struct limiter *limiter, const struct waiting *waiting, uint64_t now)
{
    if (waiting->since_ns == 0)
        return 0;
    /* A small limit earns QUANTUM_NS slowly: its threads wait for what 4 ms of wall time pay instead. */
    int64_t quantum = credit(limiter, QUANTUM_WALL_NS);
    int64_t age = credit(limiter, (int64_t)(now - waiting->since_ns)) / AGE_PART;
    return (quantum < QUANTUM_NS ? quantum : QUANTUM_NS) - (age < AGE_MOST_NS ? age : AGE_MOST_NS);
}

static bool probes(struct limiter *limiter, uint64_t now)
{
    uint64_t began = atomic_load_explicit(&limiter->probe_ns, memory_order_relaxed);
    if (now < began + PROBE_NS)
        return true;
    if (now < began + PROBE_EACH_NS || now > atomic_load_explicit(&limiter->switched_ns, memory_order_relaxed) + SEVERAL_NS)
        return false;
    atomic_store_explicit(&limiter->probe_ns, now, memory_order_relaxed);
    return true;
}

static bool side_by_side(struct limiter *limiter, uint64_t now)
{
    if (atomic_load_explicit(&limiter->budget.rate, memory_order_relaxed) >= BUDGET_WHOLE)
        return false;
    return atomic_load_explicit(&limiter->overlap, memory_order_relaxed) < APART || probes(limiter, now);
}

/* Other processes of the container would take what this one saves. */
static bool has_siblings_at_work(const struct limiter *limiter)
{
    return budget_inflight(&limiter->budget) > atomic_load_explicit(&limiter->budget.own->inflight_ns, memory_order_relaxed);
}

/* A launch that waits already does not begin another such pause: it might wait for ever. */
static bool gathers(struct limiter *limiter, const struct waiting *waiting, int64_t available, uint64_t now)
{
    uint64_t until = atomic_load_explicit(&limiter->gather_until_ns, memory_order_relaxed);
    if (available >= credit(limiter, GATHER_WALL_NS) || (now < until && has_siblings_at_work(limiter)))
        until = 0;
    else if (available < 0 && waiting->since_ns == 0 && now >= until && side_by_side(limiter, now) && !has_siblings_at_work(limiter))
        until = now + budget_wait(&limiter->budget, -available) + GATHER_WALL_NS;
    atomic_store_explicit(&limiter->gather_until_ns, until, memory_order_relaxed);
    return now < until;
}

/* When a launch of unknown cost finds two others on the GPU, only measuring helps: often at first, then at ease. */
static uint64_t poll_until(struct limiter *limiter, struct waiting *waiting, int64_t available, uint64_t now)
{
    uint64_t waited = waiting->since_ns == 0 ? 0 : now - waiting->since_ns;
    uint64_t span = POLL_NS + waited / 8;
    return wait_for(limiter, waiting, available, now, span < POLL_MOST_NS ? span : POLL_MOST_NS);
}

static uint64_t debt_until(struct limiter *limiter, struct waiting *waiting, int64_t available, int64_t needed, uint64_t now)
{
    uint64_t wall = budget_wait(&limiter->budget, needed - available), beside = atomic_load_explicit(&limiter->beside_ns, memory_order_relaxed);
    if (is_endless(limiter, now) && now + wall > beside)
        wall = beside > now ? beside - now : 0;
    /* With work on the GPU a measurement may give back a reservation that was too high: look again sooner than the debt says. */
    uint64_t slice = budget_inflight(&limiter->budget) != 0 ? SLICE_MEASURING_NS : SLICE_NS;
    return wait_for(limiter, waiting, available, now, wall < slice ? wall : slice);
}

static void go(struct limiter *limiter, struct waiting *waiting, uint64_t now)
{
    if (waiting->since_ns != 0)
        account(limiter, waiting, now);
    *waiting = (struct waiting){0};
}

static void want(struct limiter *limiter, uint64_t now)
{
    if (limiter->presence.row != NULL)
        atomic_store_explicit(&limiter->presence.row->wanted_ns, presence_told(&limiter->presence, now), memory_order_relaxed);
}

static struct grant grant_of(const struct limiter *limiter, int64_t available, uint64_t expected_ns, uint64_t most_ns)
{
    uint32_t overlap = atomic_load_explicit(&limiter->overlap, memory_order_relaxed);
    /* Streams that overlap use the same GPU time once, so the credit covers more of their launches. */
    uint64_t affordable = available > 0 ? (uint64_t)available * 256 / overlap : 0;
    uint64_t ns = affordable < most_ns ? affordable : most_ns;
    ns = ns < expected_ns ? expected_ns : ns;
    return (struct grant){ns, limiter_reservation(limiter, ns)};
}

uint64_t limiter_admit(struct limiter *limiter, struct waiting *waiting, uint64_t expected_ns, uint64_t most_ns, struct grant *grant)
{
    uint64_t now = limiter->driver->now();
    want(limiter, now);
    /* A waiter measures too where the helper is late: what is released may be what this launch waits for. */
    if (waiting->since_ns != 0 && now >= atomic_load_explicit(&limiter->harvested_ns, memory_order_relaxed) + HARVEST_NS)
        limiter_harvest(limiter, false);
    int64_t available = budget_refill(&limiter->budget, presence_told(&limiter->presence, now));
    if (expected_ns == 0 && atomic_load_explicit(&limiter->unknown, memory_order_relaxed) >= UNKNOWN_LAUNCHES) {
        limiter_harvest(limiter, false);
        if (atomic_load_explicit(&limiter->unknown, memory_order_relaxed) >= UNKNOWN_LAUNCHES &&
            !stuck_unknown(limiter, waiting, available, now))
            return poll_until(limiter, waiting, available, now);
    } else {
        /* The launch's own cost does not count: one that costs more than the whole credit would never go. */
        int64_t needed = gathers(limiter, waiting, available, now) ? credit(limiter, GATHER_WALL_NS) : bar(limiter, waiting, now);
        if (available < needed && !goes_beside(limiter, expected_ns, now) && !stuck_in_debt(limiter, waiting, available, now))
            return debt_until(limiter, waiting, available, needed, now);
    }
    go(limiter, waiting, now);
    *grant = grant_of(limiter, available, expected_ns, most_ns);
    budget_reserve(&limiter->budget, grant->reserved_ns);
    return 0;
}
