/*
 * This process's slot in the region, and clearing those of dead processes.
 *
 * A slot is claimed by compare-and-swap of its pid and cleared by whoever swaps a dead pid for his own with REGION_CLEARING, so two never clear
 * one, and one that is being cleared is never claimed. Liveness is judged only in our own pid namespace; the agent judges the others.
 */
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "once.h"

enum { REAP_WAITS = 100 };
static const uint64_t reap_ns = UINT64_C(200000000);

struct region_slot *_Atomic vcuda_own_slot;
static _Atomic int own_number = -1;
static struct once claiming;
static _Atomic uint64_t own_namespace;
static _Atomic uint32_t reaping;
static struct region_slot outside;      /* where the region has no slot left for us */

static void clear(struct region_slot *slot)
{
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        atomic_store(&slot->use[i].used, 0);
        atomic_store(&slot->use[i].pending, 0);
        atomic_store(&slot->use[i].overhead, 0);
        atomic_store(&slot->use[i].inflight_ns, 0);
    }
    memset(slot->spares, 0, sizeof slot->spares);
    atomic_store(&slot->claimed_ns, 0);
    atomic_store(&slot->pid_namespace, 0);
    atomic_store(&slot->start_time, 0);
}

static uint64_t namespace(void)
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
    return atomic_load(&slot->pid) == pid && atomic_load(&slot->pid_namespace) == namespace();
}

static void fill(struct region_slot *slot, uint32_t pid)
{
    uint64_t start = process_start_time(pid);
    atomic_store(&slot->claimed_ns, vcuda_now_ns());
    atomic_store(&slot->pid_namespace, namespace());
    atomic_store(&slot->start_time, start == 0 ? UINT64_MAX : start);
}

static void raise_high(struct region *region, uint32_t count)
{
    uint32_t high = atomic_load(&region->slot_high);
    while (high < count && !atomic_compare_exchange_weak(&region->slot_high, &high, count))
        ;
}

static uint32_t high_of(const struct region *region)
{
    uint32_t high = atomic_load(&region->slot_high);
    return high < REGION_SLOTS ? high : REGION_SLOTS;
}

/* A slot with our own pid that we did not claim is of the program that ran in this process before exec, or of a dead one. */
static int take_over(struct region *region, uint32_t pid)
{
    for (uint32_t i = 0, high = high_of(region); i < high; i++) {
        struct region_slot *slot = &region->slots[i];
        uint32_t held = pid;
        if (is_ours(slot, pid) && atomic_compare_exchange_strong(&slot->pid, &held, pid | REGION_CLEARING)) {
            clear(slot);
            atomic_store(&slot->pid, pid);
            return (int)i;
        }
    }
    return -1;
}

static int take_free(struct region *region, uint32_t pid)
{
    for (int i = 0; i < REGION_SLOTS; i++) {
        uint32_t none = 0;
        if (atomic_load(&region->slots[i].pid) == 0 && atomic_compare_exchange_strong(&region->slots[i].pid, &none, pid))
            return i;
    }
    return -1;
}

static struct region_slot *claim(void)
{
    struct region *region = vcuda_region();
    uint32_t pid = (uint32_t)getpid();
    if (region == NULL)
        return NULL;
    int number = take_over(region, pid);
    if (number < 0) {
        vcuda_reap();
        number = take_free(region, pid);
    }
    if (number < 0) {
        vcuda_warn(TOPIC_SLOT, "%s/state/region has no slot left: process %u is held to the limits by itself", paths_base(), pid);
        return &outside;
    }
    fill(&region->slots[number], pid);
    raise_high(region, (uint32_t)number + 1);
    atomic_store(&own_number, vcuda_region_shared() ? number : -1);
    return &region->slots[number];
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
    atomic_store(&reaping, 0);
    clear(&outside);
}

/* `pid` is what the slot says. Clearing that we began ourselves is over: only one thread of a process clears at a time. */
static bool is_dead(const struct region_slot *slot, uint32_t pid, uint32_t self)
{
    uint32_t holder = pid & ~(uint32_t)REGION_CLEARING;
    uint64_t start = atomic_load(&slot->start_time);
    if (atomic_load(&slot->pid_namespace) != namespace() || slot == atomic_load(&vcuda_own_slot))
        return false;
    if ((pid & REGION_CLEARING) != 0)
        return holder == self || process_is_dead(holder, 0);
    return process_is_dead(holder, start == UINT64_MAX ? 0 : start);
}

static unsigned reap(struct region *region, uint32_t self)
{
    unsigned count = 0;
    for (uint32_t i = 0, high = high_of(region); i < high; i++) {
        struct region_slot *slot = &region->slots[i];
        uint32_t pid = atomic_load(&slot->pid);
        if (pid != 0 && is_dead(slot, pid, self) && atomic_compare_exchange_strong(&slot->pid, &pid, self | REGION_CLEARING)) {
            clear(slot);
            atomic_store(&slot->pid, 0);
            count++;
        }
    }
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

unsigned vcuda_reap(void)
{
    int cancel_state;
    unsigned count = 0;
    if (!vcuda_region_shared())
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (reap_begin()) {
        atomic_store(&vcuda_region()->reaped_ns, vcuda_now_ns());
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
    uint64_t now = vcuda_now_ns(), seen = atomic_load(last);
    if ((now < seen || now - seen > reap_ns) && atomic_compare_exchange_strong(last, &seen, now))
        vcuda_reap();
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
    for (uint32_t i = 0, high = region == NULL ? 0 : high_of(region); i < high; i++)
        sum += held(&region->slots[i], index);
    return sum;
}

bool vcuda_used_by(uint32_t pid, int index, uint64_t *bytes)
{
    const struct region *region = vcuda_region();
    for (uint32_t i = 0, high = region == NULL ? 0 : high_of(region); i < high; i++) {
        if (is_ours(&region->slots[i], pid)) {
            *bytes = held(&region->slots[i], index);
            return true;
        }
    }
    return false;
}
