/*
 * Overhead; see overhead.h. Where NVML is missing, or cannot tell this process from others (held.h), a context is taken for CONTEXT_GUESS: what the
 * small ones have, so that no process is refused for memory that it does not use.
 *
 * What NVML says is of one instant between two looks at the account, and nobody stops meanwhile. What is beyond the most that can have been given out in
 * between is overhead for certain: that may be published at any time. Where nothing moved it is the overhead, and the figure may fall to it. Memory that
 * others hold, or made, counts here and is not among what NVML says of this process: NVIDIA's kernel module counts what its owner has.
 */
#include "overhead.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "backing.h"
#include "held.h"
#include "interposer/cuda/hooks.h"
#include "ordinals.h"
#include "reclaim.h"

#define CONTEXT_GUESS (UINT64_C(256) << 20)

enum { ATTEMPTS = 4 };
static const uint64_t every_ns = UINT64_C(1000000000), soonest_ns = UINT64_C(50000000), patience_ns = OVERHEAD_PATIENCE_MS * UINT64_C(1000000);

_Atomic uint32_t overhead_changes, overhead_measured;
static _Atomic uint32_t waiting;                    /* threads in overhead_settle_now */
static _Atomic bool slow;                           /* NVML took longer than our patience when it was last asked: nobody waits for it */
static _Atomic bool listed[LIMITS_MAX_DEVICES];     /* by NVML, once */
static _Atomic bool lost[LIMITS_MAX_DEVICES];       /* NVML had told, and cannot be asked at present */
static _Atomic uint64_t known_bytes[LIMITS_MAX_DEVICES];    /* what was published last */
static uint64_t last_ns;                            /* the poller's own */

static void raise(unsigned index, uint64_t bytes)
{
    _Atomic uint64_t *overhead = &vcuda_slot()->use[index].overhead;
    uint64_t known = atomic_load(overhead);

    while (known < bytes && !atomic_compare_exchange_weak(overhead, &known, bytes))
        ;
    atomic_store(&known_bytes[index], known < bytes ? bytes : known);
}

static void publish(unsigned index, uint64_t bytes)
{
    atomic_store(&known_bytes[index], bytes);
    atomic_store(&vcuda_slot()->use[index].overhead, bytes);
}

/* Into another slot, until it is measured again. */
static void bring(struct region_slot *slot)
{
    for (unsigned i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&slot->use[i].overhead, atomic_load(&known_bytes[i]));
}

void overhead_start(void)
{
    vcuda_on_slot(bring);
}

uint64_t overhead_expected(unsigned index)
{
    const struct region *region = vcuda_region();
    uint64_t learned = region == NULL ? 0 : atomic_load_explicit(&region->devices[index].context_bytes, memory_order_relaxed);

    return learned != 0 ? learned : CONTEXT_GUESS;
}

/* Only where nothing is known: a figure that was measured meanwhile stays. */
static void guess(unsigned index)
{
    uint64_t none = 0;

    if (!atomic_load(&listed[index]))
        atomic_compare_exchange_strong(&vcuda_slot()->use[index].overhead, &none, overhead_expected(index));
    if (!atomic_load(&listed[index]))
        atomic_store(&known_bytes[index], atomic_load(&vcuda_slot()->use[index].overhead));
}

static uint64_t beyond(uint64_t held, uint64_t charged)
{
    return held > charged ? held - charged : 0;
}

/* With the pools as they are now: one may have given memory back since it was last read. */
static struct account_instant look(unsigned index)
{
    reclaim_read(index);
    return account_look(index);
}

/* Whether the driver must know of us on this device. A context of one's own that holds nothing does not show. */
static bool is_there(int device, uint64_t used)
{
    unsigned flags;
    int active = 0;

    return used != 0 || (DRIVER(cuDevicePrimaryCtxGetState, device, &flags, &active) == CUDA_SUCCESS && active != 0);
}

static void publish_unlisted(unsigned index, enum held answer, bool there)
{
    if (answer == HELD_NOTHING && (!there || atomic_load(&listed[index])))
        publish(index, 0);
    else if (there)
        guess(index);
}

/* One reading. True: there is nothing to be gained by another. */
static bool measure(unsigned index, int device)
{
    uint64_t held;
    uint64_t apart = backing_apart(index);
    struct account_instant before = look(index);
    bool there = is_there(device, before.used);
    enum held answer = held_ask(index, device, there, &held);
    struct account_instant after = look(index);
    bool still = account_still(&before, &after), managed = account_has_managed(index);

    there = there && is_there(device, after.used);
    atomic_store(&lost[index], answer == HELD_UNKNOWN && atomic_load(&listed[index]));
    if (answer != HELD_KNOWN) {
        publish_unlisted(index, answer, there);
        return true;
    }
    atomic_store(&listed[index], true);
    apart = apart < backing_apart(index) ? apart : backing_apart(index);
    uint64_t certain = beyond(held, account_most(&before, &after) - apart);
    if (still && !managed)
        publish(index, certain);
    else
        raise(index, certain);
    return still || after.taken == before.taken;
}

static void measure_all(void)
{
    CUstreamCaptureMode mode = reclaim_begin();

    for (unsigned index = 0; index < vcuda_limits()->device_count; index++) {
        int device = ordinals_get(index);
        for (int attempt = 0; device >= 0 && attempt < ATTEMPTS && !vcuda_leaving(); attempt++) {
            if (measure(index, device))
                break;
        }
    }
    reclaim_end(mode);
}

static bool is_any_lost(void)
{
    bool any = false;

    for (unsigned index = 0; index < vcuda_limits()->device_count; index++)
        any = any || atomic_load(&lost[index]);
    return any;
}

static void announce(uint32_t changes)
{
    atomic_store(&overhead_measured, changes);
    syscall(SYS_futex, &overhead_measured, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static uint64_t follow(uint64_t now_ns)
{
    if (atomic_load(&waiting) == 0 && last_ns != 0 && now_ns - last_ns < soonest_ns)
        return last_ns + soonest_ns;
    held_load();
    uint32_t changes = atomic_load(&overhead_changes);
    last_ns = vcuda_now_ns();
    measure_all();
    if (is_any_lost())
        return vcuda_now_ns() + (atomic_load(&waiting) != 0 ? soonest_ns : every_ns);
    atomic_store(&slow, vcuda_now_ns() - last_ns > patience_ns);
    announce(changes);
    return vcuda_now_ns() + every_ns;
}

bool overhead_is_measured(unsigned index)
{
    return atomic_load(&listed[index]);
}

bool overhead_is_lost(unsigned index)
{
    return atomic_load(&lost[index]);
}

void overhead_expect(void)
{
    vcuda_poller_add(follow);
}

void overhead_changed(void)
{
    if (vcuda_poller_add(follow))
        vcuda_poller_wake(follow);
}

void overhead_grew(void)
{
    atomic_fetch_add(&overhead_changes, 1);
    overhead_changed();
}

static bool is_measured(uint32_t changes)
{
    return (int32_t)(atomic_load(&overhead_measured) - changes) >= 0;
}

/* By futex calls, which are no cancellation points. */
static void wait_until_measured(uint32_t changes)
{
    uint64_t deadline_ns = vcuda_now_ns() + patience_ns;
    uint32_t seen = atomic_load(&overhead_measured);

    for (uint64_t now = vcuda_now_ns(); now < deadline_ns && !is_measured(changes) && !vcuda_leaving(); now = vcuda_now_ns()) {
        struct timespec bound = vcuda_span(deadline_ns - now);
        syscall(SYS_futex, &overhead_measured, FUTEX_WAIT_PRIVATE, seen, &bound, NULL, 0);
        seen = atomic_load(&overhead_measured);
    }
}

/* Without a poller there is nothing to wait for. */
void overhead_settle_now(void)
{
    uint32_t changes = atomic_load(&overhead_changes);
    bool poller = vcuda_poller_add(follow);

    if (poller && !atomic_load(&slow)) {
        atomic_fetch_add(&waiting, 1);
        vcuda_poller_wake(follow);
        wait_until_measured(changes);
        atomic_fetch_sub(&waiting, 1);
    }
    if (is_measured(changes))
        return;
    atomic_store(&slow, true);
    if (!poller)
        atomic_store(&overhead_measured, changes);
    for (unsigned index = 0; index < vcuda_limits()->device_count; index++) {
        if (ordinals_get(index) >= 0)
            guess(index);
    }
}

void overhead_forget(void)
{
    last_ns = 0;
    atomic_store(&waiting, 0);
    atomic_store(&slow, false);
    atomic_store(&overhead_measured, atomic_load(&overhead_changes));
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&listed[i], false);
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        atomic_store(&lost[i], false);
        atomic_store(&known_bytes[i], 0);
    }
}
