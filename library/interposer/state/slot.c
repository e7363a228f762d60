/*
 * This process's slot in the region, and what the slots say together. Clearing those of the dead: reap.c.
 *
 * Invariant: a slot is one process's from the instant its `pid` is set until it is cleared. Its words are written before, with REGION_CLEARING
 * in `pid` and the slot's lock held (slot_lock.c), so that whatever kills the claimer leaves a slot that is free or seen to be nobody's.
 */
#include <unistd.h>

#include "internal.h"
#include "once.h"

struct region_slot *_Atomic vcuda_own_slot;
static _Atomic int own_number = -1;
static struct once claiming;
static _Atomic uint64_t own_namespace;
static struct region_slot outside;      /* where the region has no slot left for us */

/* pid, start time and namespace stay: if the clearer is killed, the next one judges the slot the same way. */
void slot_clear(struct region_slot *slot)
{
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        atomic_store(&slot->use[i].used, 0);
        atomic_store(&slot->use[i].pending, 0);
        atomic_store(&slot->use[i].overhead, 0);
        atomic_store(&slot->use[i].inflight_ns, 0);
    }
    for (int i = 0; i < REGION_LENDERS / 64; i++)
        atomic_store(&slot->lenders[i], 0);
}

uint64_t slot_namespace(void)
{
    uint64_t known = atomic_load(&own_namespace);
    if (known == 0) {
        known = process_namespace();
        atomic_store(&own_namespace, known);
    }
    return known;
}

static bool is_ours(const struct region_slot *slot, uint32_t pid)
{
    return atomic_load(&slot->pid) == pid && atomic_load(&slot->pid_namespace) == slot_namespace();
}

static void fill(struct region_slot *slot, uint32_t pid, bool locked)
{
    uint64_t start = process_start_time(pid);
    atomic_store(&slot->locked, locked);
    atomic_store(&slot->claimed_ns, vcuda_node_ns());
    atomic_store(&slot->pid_namespace, slot_namespace());
    atomic_store(&slot->start_time, start == 0 ? UINT64_MAX : start);
}

static void raise_high(struct region *region, uint32_t count)
{
    uint32_t high = atomic_load(&region->slot_high);
    while (high < count && !atomic_compare_exchange_weak(&region->slot_high, &high, count))
        ;
}

uint32_t slot_high(const struct region *region)
{
    uint32_t high = atomic_load(&region->slot_high);
    return high < REGION_SLOTS ? high : REGION_SLOTS;
}

/* Slots with our own pid that we did not claim are of the program that ran in this process before exec, or of a dead one. One of them will do. */
static int take_over(struct region *region, uint32_t pid, int file)
{
    int taken = -1;
    for (uint32_t i = 0, high = slot_high(region); i < high; i++) {
        struct region_slot *slot = &region->slots[i];
        uint32_t held = pid;
        enum slot_lock lock = is_ours(slot, pid) ? slot_lock_try(file, i) : SLOT_LOCK_HELD;
        if (lenders_is_borrowed(region, i) && lock != SLOT_LOCK_NONE) {    /* a sibling has imported memory of the program before exec */
            if (lock == SLOT_LOCK_TAKEN)
                slot_lock_release(file, i);
            continue;
        }
        if (!is_ours(slot, pid) || !atomic_compare_exchange_strong(&slot->pid, &held, pid | REGION_CLEARING))
            continue;
        slot_clear(slot);
        bool wanted = taken < 0 && lock != SLOT_LOCK_HELD;
        if (wanted)
            fill(slot, pid, lock == SLOT_LOCK_TAKEN);
        taken = wanted ? (int)i : taken;
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

static struct region_slot *claim(void)
{
    struct region *region = vcuda_region();
    uint32_t pid = (uint32_t)getpid();
    if (region == NULL)
        return NULL;
    int number = find(region, pid);
    if (number < 0) {
        vcuda_warn(TOPIC_SLOT, "%s/state/region has no slot left: process %u gets no device memory", paths_base(), pid);
        return &outside;
    }
    atomic_store(&own_number, vcuda_region_shared() ? number : -1);
    return &region->slots[number];
}

bool slot_is_outside(void)
{
    return atomic_load_explicit(&vcuda_own_slot, memory_order_acquire) == &outside;
}

static bool is_claimed(void)
{
    return atomic_load_explicit(&vcuda_own_slot, memory_order_acquire) != NULL;
}

struct region_slot *vcuda_claim_slot(void)
{
    vcuda_attach();
    if (once_enter(&claiming, is_claimed)) {
        atomic_store_explicit(&vcuda_own_slot, claim(), memory_order_release);
        once_leave(&claiming);
        vcuda_helper_watch();
    }
    struct region_slot *slot = atomic_load_explicit(&vcuda_own_slot, memory_order_acquire);
    return slot != NULL ? slot : &outside;
}

int vcuda_slot_number(void)
{
    vcuda_slot();
    return atomic_load(&own_number);
}

void slot_forget(void)
{
    atomic_store(&vcuda_own_slot, NULL);
    atomic_store(&own_number, -1);
    atomic_store(&claiming.holder, 0);
    atomic_store(&own_namespace, 0);
    slot_lock_forget();
    slot_clear(&outside);
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
        if (is_ours(&region->slots[i], pid)) {
            *bytes = held(&region->slots[i], index);
            return true;
        }
    }
    return false;
}
