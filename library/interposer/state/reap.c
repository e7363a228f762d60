/*
 * Clearing the slots of the dead, and of programs that are gone by exec.
 *
 * A slot whose owner held its lock is nobody's when the lock is free, whichever pid namespace it was in. Where its owner had none, or the lock has
 * leaked into another process, it is judged by pid and start time, in our own pid namespace only; the agent judges the others.
 *
 * Invariants: clearing may be broken off at any store and begun again by anybody: the words by which a slot is judged stay until `pid` is 0, which is
 * the last store, and while it is REGION_CLEARING its clearer holds the lock, or is judged by the pid there. Two never clear one: `pid` is
 * won by compare-and-swap. Who has no descriptor left cannot look at a lock: it clears those of its own pid namespace that are gone for certain, and says in
 * `locked` that it holds none, so that others judge it by its pid. What was claimed again meanwhile under the same pid is left alone: it has another start time or is locked.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { REAP_WAITS = 100 };
static const uint64_t reap_ns = UINT64_C(200000000);
static _Atomic uint32_t reaping;

struct tenant {                 /* what a slot says */
    uint32_t pid;
    uint64_t start_time, claimed_ns;
};

static struct tenant tenant_of(const struct region_slot *slot)
{
    return (struct tenant){atomic_load(&slot->pid), atomic_load(&slot->start_time), atomic_load(&slot->claimed_ns)};
}

static uint64_t known_start(const struct tenant *tenant)
{
    return tenant->start_time == UINT64_MAX ? 0 : tenant->start_time;
}

/* Clearing that we began ourselves is over where nobody holds the lock: only one thread of a process clears at a time. */
static bool is_dead_by_pid(const struct region_slot *slot, const struct tenant *tenant, enum slot_lock lock, uint32_t self)
{
    uint32_t holder = tenant->pid & ~(uint32_t)REGION_CLEARING;
    if (atomic_load(&slot->pid_namespace) != slot_namespace())
        return false;
    if ((tenant->pid & REGION_CLEARING) != 0)
        return (holder == self && lock != SLOT_LOCK_HELD) || process_is_dead(holder, 0);
    return process_is_dead(holder, known_start(tenant));
}

/* A process that is ending has let go of the lock, but its memory may still be the driver's to free: it is dead a moment later. */
static bool is_dead(const struct region_slot *slot, const struct tenant *tenant, enum slot_lock lock, uint32_t self)
{
    uint32_t locked = atomic_load(&slot->locked);
    if (lock != SLOT_LOCK_TAKEN || locked == SLOT_CLEARED_BLIND)
        return is_dead_by_pid(slot, tenant, lock, self);
    if ((tenant->pid & REGION_CLEARING) != 0)
        return true;
    if (locked == SLOT_UNLOCKED)
        return is_dead_by_pid(slot, tenant, lock, self);
    return atomic_load(&slot->pid_namespace) != slot_namespace() || !process_is_ending(tenant->pid, known_start(tenant));
}

/* Wins the right to clear it; what it says may have changed since it was judged. */
static bool win(struct region_slot *slot, const struct tenant *judged, uint32_t self)
{
    uint32_t pid = judged->pid;
    if (!atomic_compare_exchange_strong(&slot->pid, &pid, self | REGION_CLEARING))
        return false;
    if (atomic_load(&slot->start_time) == judged->start_time && atomic_load(&slot->claimed_ns) == judged->claimed_ns)
        return true;
    atomic_store(&slot->pid, judged->pid);
    return false;
}

bool slot_has_ended(uint32_t number, uint64_t claimed_ns)
{
    const struct region_slot *slot = &vcuda_region()->slots[number];
    int file = slot_lock_open();
    if (file < 0)
        return false;
    enum slot_lock lock = slot_lock_try(file, number);
    struct tenant tenant = tenant_of(slot);
    bool another = tenant.pid == 0 || (tenant.pid & REGION_CLEARING) != 0 || tenant.claimed_ns != claimed_ns;
    bool ended = another || is_dead(slot, &tenant, lock, (uint32_t)getpid());
    if (lock == SLOT_LOCK_TAKEN)
        slot_lock_release(file, number);
    slot_lock_close(file);
    return ended;
}

static bool is_dead_now(uint32_t number, int file, uint32_t self)
{
    const struct region_slot *slot = &vcuda_region()->slots[number];
    enum slot_lock lock = slot_lock_try(file, number);
    struct tenant tenant = tenant_of(slot);
    bool dead = tenant.pid != 0 && is_dead(slot, &tenant, lock, self);
    if (lock == SLOT_LOCK_TAKEN)
        slot_lock_release(file, number);
    return dead;
}

/* The dead have nothing: of two that imported from each other neither would ever be cleared. */
static bool the_living_borrow(uint32_t number, int file, uint32_t self)
{
    int borrower = slot_borrower(vcuda_region(), number, 0);
    while (borrower >= 0 && is_dead_now((uint32_t)borrower, file, self))
        borrower = slot_borrower(vcuda_region(), number, (uint32_t)borrower + 1);
    return borrower >= 0;
}

/* What it had stays while a living process has imported some of it: asked once it is dead, for nobody imports from a dead one (lenders.c). */
static bool may_clear(const struct region_slot *slot, const struct tenant *tenant, enum slot_lock lock, uint32_t number, int file)
{
    uint32_t self = (uint32_t)getpid();
    return tenant->pid != 0 && is_dead(slot, tenant, lock, self) && !the_living_borrow(number, file, self);
}

static bool reap_one(struct region_slot *slot, uint32_t number, int file, uint32_t self)
{
    if (atomic_load(&slot->pid) == 0 || (slot == atomic_load(&vcuda_own_slot) && slot_is_own(slot)))
        return false;
    enum slot_lock lock = slot_lock_try(file, number);
    struct tenant tenant = tenant_of(slot);
    bool won = may_clear(slot, &tenant, lock, number, file);
    if (won && lock == SLOT_LOCK_NONE)
        atomic_store(&slot->locked, SLOT_CLEARED_BLIND);
    won = won && win(slot, &tenant, self);
    if (won) {
        uint32_t clearing = self | REGION_CLEARING;
        slot_clear(slot);
        atomic_store(&slot->locked, SLOT_UNLOCKED);     /* from here on another may be at it too */
        atomic_compare_exchange_strong(&slot->pid, &clearing, 0);
    }
    if (lock == SLOT_LOCK_TAKEN)
        slot_lock_release(file, number);
    return won;
}

static unsigned reap_all(struct region *region, int file, uint32_t self)
{
    unsigned count = 0;
    for (uint32_t i = 0, high = slot_high(region); i < high; i++)
        count += reap_one(&region->slots[i], i, file, self);
    return count;
}

static unsigned reap(struct region *region, uint32_t self)
{
    int file = slot_lock_open();
    unsigned count = reap_all(region, file, self);
    slot_lock_close(file);
    return count;
}

/* Another thread may be at it: who asks because memory is short wants to know what that one finds. */
static bool reap_begin(void)
{
    const struct timespec pause = {.tv_nsec = 200000};
    uint32_t free = 0;
    for (int i = 0; i < REAP_WAITS && !atomic_compare_exchange_strong(&reaping, &free, 1); i++, free = 0)
        nanosleep(&pause, NULL);
    return free == 0;
}

static void forget(void)
{
    atomic_store(&reaping, 0);
}

unsigned vcuda_reap(void)
{
    int cancel_state;
    unsigned count = 0;
    if (!vcuda_region_shared())
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    vcuda_on_fork(forget);
    if (reap_begin()) {
        atomic_store(&vcuda_region()->reaped_ns, vcuda_node_ns());
        count = reap(vcuda_region(), (uint32_t)getpid());
        atomic_store(&reaping, 0);
    }
    pthread_setcancelstate(cancel_state, NULL);
    return count;
}

/* A look costs microseconds for each living process, so one of them looks for all. A time in the future is of a clock before a reboot. */
void slot_reap_now_and_then(void)
{
    if (!vcuda_region_shared())
        return;
    _Atomic uint64_t *last = &vcuda_region()->reaped_ns;
    uint64_t now = vcuda_node_ns(), seen = atomic_load(last);
    if ((now < seen || now - seen > reap_ns) && atomic_compare_exchange_strong(last, &seen, now))
        vcuda_reap();
}
