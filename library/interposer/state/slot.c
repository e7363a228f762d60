/*
 * This process's slot in the region, what the slots say together, and what the helper does again and again for them.
 *
 * Invariant: a slot is one process's from the instant its `pid` is set until it is cleared. Its words are written before, with REGION_CLEARING
 * in `pid` and the slot's lock held (slot_lock.c), so that whatever kills the claimer leaves a slot that is free or seen to be nobody's.
 * What was claimed once is not believed to be held: a process that is restored from a checkpoint has its mappings and no lock, and another one may have cleared
 * its slot. So each use looks whose it is, and the helper now and then looks for the lock. Who has lost his slot claims another and brings what he has.
 */
#include <unistd.h>

#include "internal.h"
#include "once.h"

enum { MAX_CALLBACKS = 4 };
static const uint64_t try_ns = UINT64_C(250000000);

static _Atomic int own_number = -1;
static struct once claiming;
static _Atomic uint32_t own_locked;     /* the lock was taken, and lives in a mapping of ours */
static _Atomic uint64_t tried_ns;
static vcuda_slot_callback *_Atomic callbacks[MAX_CALLBACKS];
static struct region_slot outside;      /* where the region has no slot left for us */

static void identify(struct region_slot *slot, uint32_t pid, bool locked)
{
    uint64_t start = process_start_time(pid);
    atomic_store(&own_locked, locked);
    atomic_store(&slot->locked, locked ? SLOT_LOCKED : SLOT_UNLOCKED);
    atomic_store(&vcuda_own_namespace, slot_namespace());
    atomic_store(&slot->pid_namespace, slot_namespace());
    atomic_store(&slot->start_time, start == 0 ? UINT64_MAX : start);
}

static void fill(struct region_slot *slot, uint32_t pid, bool locked)
{
    atomic_store(&slot->claimed_ns, vcuda_node_ns());
    identify(slot, pid, locked);
}

static void raise_high(struct region *region, uint32_t count)
{
    uint32_t high = atomic_load(&region->slot_high);
    while (high < count && !atomic_compare_exchange_weak(&region->slot_high, &high, count))
        ;
}

/* Slots with our own pid that we did not claim are of the program that ran in this process before exec, or of a dead one. One of them will do. */
static int take_over(struct region *region, uint32_t pid, int file)
{
    int taken = -1;
    for (uint32_t i = 0, high = slot_high(region); i < high; i++) {
        struct region_slot *slot = &region->slots[i];
        uint32_t held = pid;
        enum slot_lock lock = slot_is_of(slot, pid) ? slot_lock_try(file, i) : SLOT_LOCK_HELD;
        if (lock == SLOT_LOCK_HELD && slot_is_of(slot, pid) && slot_lock_is_a_copys())
            continue;
        if (slot_is_borrowed(region, i) && lock != SLOT_LOCK_NONE) {    /* a sibling has imported memory of the program before exec */
            if (lock == SLOT_LOCK_TAKEN)
                slot_lock_release(file, i);
            continue;
        }
        if (!slot_is_of(slot, pid) || !atomic_compare_exchange_strong(&slot->pid, &held, pid | REGION_CLEARING))
            continue;
        slot_clear(slot);
        bool wanted = taken < 0 && lock != SLOT_LOCK_HELD;
        if (wanted)
            fill(slot, pid, lock == SLOT_LOCK_TAKEN);
        taken = wanted ? (int)i : taken;
        if (!wanted)
            atomic_store(&slot->locked, SLOT_UNLOCKED);
        atomic_store(&slot->pid, wanted ? pid : 0);
        if (!wanted && lock == SLOT_LOCK_TAKEN)
            slot_lock_release(file, i);
    }
    return taken;
}

/* REGION_CLEARING until its words are written: a process that finds it so, and unlocked, clears it. */
static bool take(struct region_slot *slot, uint32_t pid, enum slot_lock lock)
{
    uint32_t none = 0, claimed_pid = pid | REGION_CLEARING;
    if (lock == SLOT_LOCK_HELD || !atomic_compare_exchange_strong(&slot->pid, &none, claimed_pid))
        return false;
    fill(slot, pid, lock == SLOT_LOCK_TAKEN);
    return atomic_compare_exchange_strong(&slot->pid, &claimed_pid, pid);
}

static int take_free(struct region *region, uint32_t pid, int file)
{
    for (uint32_t i = 0; i < REGION_SLOTS; i++) {
        if (atomic_load(&region->slots[i].pid) != 0)
            continue;
        enum slot_lock lock = slot_lock_try(file, i);
        raise_high(region, i + 1);
        if (take(&region->slots[i], pid, lock))
            return (int)i;
        if (lock == SLOT_LOCK_TAKEN)
            slot_lock_release(file, i);
    }
    return -1;
}

/* Its number, or -1. Where no lock can be kept, none is taken. */
static int find(struct region *region, uint32_t pid)
{
    int file = slot_lock_open();
    int locks = slot_lock_keep(file) ? file : -1;
    int number = take_over(region, pid, locks);
    if (number < 0) {
        vcuda_reap();
        number = take_free(region, pid, locks);
    }
    slot_lock_close(file);
    return number;
}

static void forget(void)
{
    atomic_store(&vcuda_own_slot, NULL);
    atomic_store(&own_number, -1);
    atomic_store(&claiming.holder, 0);
    atomic_store(&own_locked, 0);
    slot_clear(&outside);
}

/* One outside is filled too, so that it passes for our own. */
static struct region_slot *claim(void)
{
    struct region *region = vcuda_region();
    uint32_t pid = (uint32_t)getpid();
    if (region == NULL)
        return NULL;
    vcuda_on_fork(forget);
    atomic_store(&vcuda_own_pid, pid);
    int number = find(region, pid);
    atomic_store(&own_number, number >= 0 && vcuda_region_shared() ? number : -1);
    if (number >= 0)
        return &region->slots[number];
    vcuda_warn(TOPIC_SLOT, "%s/state/region has no slot left: process %u gets no device memory", paths_base(), pid);
    fill(&outside, pid, false);
    atomic_store(&outside.pid, pid);
    atomic_store(&tried_ns, vcuda_now_ns());
    return &outside;
}

/* Before anybody else sees the slot. */
static void bring_what_we_have(struct region_slot *slot)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        vcuda_slot_callback *callback = atomic_load(&callbacks[i]);
        if (callback != NULL)
            callback(slot);
    }
}

static void claim_and_publish(void)
{
    struct region_slot *slot = claim();
    if (slot != NULL)
        bring_what_we_have(slot);
    atomic_store_explicit(&vcuda_own_slot, slot, memory_order_release);
}

void vcuda_on_slot(vcuda_slot_callback *callback)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        vcuda_slot_callback *held = NULL;
        if (atomic_compare_exchange_strong(&callbacks[i], &held, callback) || held == callback)
            return;
    }
}

bool slot_is_outside(void)
{
    return atomic_load_explicit(&vcuda_own_slot, memory_order_acquire) == &outside;
}

static bool is_claimed(void)
{
    return slot_is_own(atomic_load_explicit(&vcuda_own_slot, memory_order_acquire));
}

static bool is_never_done(void)
{
    return false;
}

struct region_slot *vcuda_claim_slot(void)
{
    vcuda_attach();
    if (once_enter(&claiming, is_claimed)) {
        claim_and_publish();
        once_leave(&claiming);
        vcuda_helper_watch();
    }
    struct region_slot *slot = atomic_load_explicit(&vcuda_own_slot, memory_order_acquire);
    return slot != NULL ? slot : &outside;
}

static bool is_time(void)
{
    uint64_t now = vcuda_now_ns(), last = atomic_load(&tried_ns);
    return now - last >= try_ns && atomic_compare_exchange_strong(&tried_ns, &last, now);
}

/* Who has no slot costs others a look at all of them: now and then. A region that could not be opened costs one call. */
static bool try_again(void)
{
    bool again = false;
    if (slot_is_outside() ? !is_time() : region_is_usable())
        return !slot_is_outside();
    if (once_enter(&claiming, is_never_done)) {
        again = region_open_again() || slot_is_outside();
        if (again)
            claim_and_publish();
        once_leave(&claiming);
    }
    return again;
}

bool vcuda_memory_closed(void)
{
    enum limits_origin origin = vcuda_limits()->origin;
    if (origin == LIMITS_UNREADABLE) {
        vcuda_refresh();
        origin = vcuda_limits()->origin;
    }
    if (origin == LIMITS_ABSENT || origin == LIMITS_UNREADABLE)
        return origin == LIMITS_UNREADABLE;
    if (region_is_usable() && !slot_is_outside())
        return false;
    return !try_again() || !region_is_usable() || slot_is_outside();
}

/* Whose it is stays: it says so already. The namespace may be another one, where a container was restored. */
static void lock_again(struct region_slot *slot, uint32_t number)
{
    int file = slot_lock_open();
    bool free = slot_lock_is_free(file, number);
    if (!free && file >= 0 && atomic_load(&own_locked) != 0)
        atomic_store(&slot->locked, SLOT_LOCKED);
    if (free && slot_lock_try(file, number) == SLOT_LOCK_TAKEN) {
        bool is_kept = slot_is_own(slot) && slot_lock_keep(file);
        slot_forget_namespace();
        if (is_kept)
            identify(slot, (uint32_t)getpid(), true);
        else
            slot_lock_release(file, number);
    }
    slot_lock_close(file);
}

/* Whether our slot is still ours, and its lock. */
static void look(void)
{
    struct region_slot *slot = atomic_load(&vcuda_own_slot);
    int number = atomic_load(&own_number);
    if (slot == NULL)
        return;
    if (vcuda_memory_closed())
        return;
    if (!slot_is_own(slot))
        vcuda_claim_slot();
    else if (number >= 0)
        lock_again(slot, (uint32_t)number);
}

static uint64_t watch(uint64_t now_ns)
{
    vcuda_refresh();
    node_clock_look();
    look();
    slot_reap_now_and_then();
    utilization_sample();
    return now_ns + UINT64_C(250000000);
}

void vcuda_helper_watch(void)
{
    if (vcuda_limits()->origin != LIMITS_ABSENT)
        vcuda_helper_add(watch);
}

int vcuda_slot_number(void)
{
    vcuda_slot();
    return atomic_load(&own_number);
}

static uint64_t held(const struct region_slot *slot, int index)
{
    return atomic_load(&slot->use[index].used) + atomic_load(&slot->use[index].overhead);
}

uint64_t vcuda_used(int index)
{
    const struct region *region = vcuda_region();
    const struct region_slot *own = atomic_load(&vcuda_own_slot);
    uint64_t sum = own == &outside ? held(own, index) : 0;
    slot_reap_now_and_then();
    for (uint32_t i = 0, high = region == NULL ? 0 : slot_high(region); i < high; i++)
        sum += held(&region->slots[i], index);
    return sum;
}

bool vcuda_used_by(uint32_t pid, int index, uint64_t *bytes)
{
    const struct region *region = vcuda_region();
    for (uint32_t i = 0, high = region == NULL ? 0 : slot_high(region); i < high; i++) {
        if (slot_is_of(&region->slots[i], pid)) {
            *bytes = held(&region->slots[i], index);
            return true;
        }
    }
    return false;
}
