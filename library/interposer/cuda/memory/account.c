/* Accounting; see account.h. */
#include "account.h"

#include <pthread.h>
#include <string.h>

#include "interposer/cuda/hooks.h"
#include "ledger.h"
#include "overhead.h"
#include "reclaim.h"
#include "virtual_hooks.h"

/* Begun and ended by the way, and not by taking or giving back. */
struct traffic {
    _Alignas(64) _Atomic uint64_t begun;
    _Atomic uint64_t ended;
    _Atomic int64_t managed;
};

#define REMEASURE_NS UINT64_C(10000000)

static _Atomic uint64_t measured_ns;                    /* when it was measured before a refusal */
static struct traffic traffic[LIMITS_MAX_DEVICES + 1];  /* the last: ACCOUNT_ANY */

static struct ledger_own mine[LIMITS_MAX_DEVICES];

/*
 * In a child another thread's lock would stay held. So the fork is heard of before any is taken: also in a process whose cuInit did not come by us, and where
 * nobody has called account_start.
 */
static struct ledger_own *own_of(unsigned index)
{
    static _Atomic bool follows;

    if (!atomic_load_explicit(&follows, memory_order_acquire)) {
        vcuda_on_fork(account_forget);
        atomic_store_explicit(&follows, true, memory_order_release);
    }
    return &mine[index];
}

static enum verdict verdict_at(int index, unsigned *out)
{
    const struct limits_device *limits = vcuda_device(index);

    if (index == VCUDA_UNNAMED || index == VCUDA_UNKNOWN)
        return VERDICT_REFUSE;
    if (limits == NULL || limits->memory_bytes == 0)
        return VERDICT_PASS;
    *out = (unsigned)index;
    return VERDICT_COUNT;
}

bool account_needed(void)
{
    return vcuda_limits()->device_count != 0 || vcuda_memory_closed();
}

enum verdict account_verdict(int device, unsigned *index)
{
    return vcuda_memory_closed() ? VERDICT_REFUSE : verdict_at(device_index(device), index);
}

enum verdict account_verdict_current(unsigned *index)
{
    return vcuda_memory_closed() ? VERDICT_REFUSE : verdict_at(device_index_current(), index);
}

enum verdict account_verdict_of(CUcontext current, unsigned *index)
{
    return vcuda_memory_closed() ? VERDICT_REFUSE : verdict_at(device_index_of(current), index);
}

static uint64_t limit_of(unsigned index)
{
    const struct limits_device *limits = vcuda_device((int)index);

    return limits == NULL || limits->memory_bytes == 0 ? UINT64_MAX / 2 : limits->memory_bytes;
}

/* It begins a span as well. A slot is claimed first: who gets none gets no memory. */
static bool take_once(struct region *region, unsigned index, uint64_t bytes)
{
    struct region_slot *own = vcuda_slot();

    return !vcuda_memory_closed() && ledger_take(own_of(index), region, own, index, bytes, limit_of(index), vcuda_reap);
}

/* Each step may have freed something; the dearer ones come later. */
static bool charge_after_reclaim(unsigned index, uint64_t bytes)
{
    struct region *region = vcuda_region();

    if (region == NULL)
        return false;
    vcuda_refresh();
    if (bytes > limit_of(index))
        return false;
    sharing_settle();
    vcuda_reap();
    reclaim_read(index);
    if (take_once(region, index, bytes))
        return true;
    return reclaim_trim(index) && take_once(region, index, bytes);
}

static void count_refusal(struct region *region, unsigned index)
{
    atomic_fetch_add_explicit(&region->devices[index].refusals, 1, memory_order_relaxed);
}

static bool try_once(unsigned index, uint64_t bytes)
{
    struct region *region = vcuda_region();

    if (region == NULL)
        return false;
    vcuda_helper_poll();
    overhead_settle();
    return take_once(region, index, bytes);
}

static void count_end(unsigned index)
{
    atomic_fetch_add(&traffic[index].ended, 1);
}

/* Within a span that was begun before. */
static bool taken_within(bool taken, unsigned index)
{
    if (taken)
        count_end(index);
    return taken;
}

bool account_try(unsigned index, uint64_t bytes)
{
    return taken_within(try_once(index, bytes), index);
}

void account_reclaim(unsigned index)
{
    vcuda_refresh();
    sharing_settle();
    vcuda_reap();
    reclaim_read(index);
    reclaim_trim(index);
}

void account_refused(unsigned index)
{
    struct region *region = vcuda_region();

    if (region != NULL)
        count_refusal(region, index);
    overhead_changed();     /* it may have fallen since it was last looked at */
}

bool account_charge(unsigned index, uint64_t bytes)
{
    if (account_try(index, bytes) || taken_within(charge_after_reclaim(index, bytes), index))
        return true;
    account_refused(index);
    return false;
}

/* What others gave back is in the sums at once; of our own only NVML knows. Asked at most every 10 ms: a program may try on and on. */
static bool may_be_stale(unsigned index, uint64_t bytes)
{
    uint64_t overhead = atomic_load(&vcuda_slot()->use[index].overhead), used = vcuda_used((int)index), now = vcuda_now_ns();
    uint64_t last = atomic_load(&measured_ns), fixed = used > overhead ? used - overhead : 0;

    return overhead != 0 && bytes <= limit_of(index) && fixed <= limit_of(index) - bytes && now - last > REMEASURE_NS &&
           atomic_compare_exchange_strong(&measured_ns, &last, now);
}

static bool open_once(struct account_span *span, unsigned index, uint64_t bytes)
{
    overhead_settle();
    span->index = index;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &span->cancel_state);
    if (try_once(index, bytes))
        return true;
    atomic_fetch_add(&traffic[index].begun, 1);
    bool taken = charge_after_reclaim(index, bytes);
    count_end(index);
    if (!taken)
        pthread_setcancelstate(span->cancel_state, NULL);
    return taken;
}

bool account_open(struct account_span *span, unsigned index, uint64_t bytes)
{
    if (open_once(span, index, bytes))
        return true;
    if (may_be_stale(index, bytes)) {
        overhead_grew();
        if (open_once(span, index, bytes))
            return true;
    }
    account_refused(index);
    return false;
}

static bool reserve_once(unsigned index, uint64_t bytes)
{
    return ledger_reserve(own_of(index), vcuda_region(), vcuda_slot(), index, bytes, limit_of(index), vcuda_reap);
}

bool account_reserve(unsigned index, uint64_t bytes)
{
    vcuda_helper_poll();
    if (reserve_once(index, bytes))
        return true;
    account_reclaim(index);
    return reserve_once(index, bytes);
}

void account_unreserve(unsigned index, uint64_t bytes)
{
    ledger_unreserve(own_of(index), vcuda_slot(), index, bytes);
}

bool account_is_over(unsigned index)
{
    return vcuda_used((int)index) > limit_of(index);
}

bool account_overrun(unsigned index)
{
    bool over = account_is_over(index);

    if (over)
        count_refusal(vcuda_region(), index);
    return over;
}

void account_uncharge(unsigned index, uint64_t bytes)
{
    if (bytes == 0)
        return;
    atomic_fetch_add(&traffic[index].begun, 1);
    ledger_give(own_of(index), vcuda_slot(), index, bytes);
}

void account_record(unsigned index, uint64_t bytes)
{
    struct region *region = vcuda_region();

    if (region == NULL || bytes == 0)
        return;
    ledger_record(own_of(index), region, vcuda_slot(), index, bytes);
}

void account_begin(struct account_span *span, unsigned index)
{
    span->index = index;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &span->cancel_state);
    atomic_fetch_add(&traffic[index].begun, 1);
}

void account_end(const struct account_span *span)
{
    count_end(span->index);
    pthread_setcancelstate(span->cancel_state, NULL);
}

void account_close(const struct account_span *span, uint64_t bytes)
{
    ledger_give(own_of(span->index), vcuda_slot(), span->index, bytes);
    pthread_setcancelstate(span->cancel_state, NULL);
}

struct account_instant account_look(unsigned index)
{
    struct account_instant now;

    now.ended = atomic_load(&mine[index].gives) + atomic_load(&traffic[index].ended) + atomic_load(&traffic[ACCOUNT_ANY].ended);
    now.begun = atomic_load(&mine[index].takes) + atomic_load(&traffic[index].begun) + atomic_load(&traffic[ACCOUNT_ANY].begun);
    now.taken = atomic_load(&mine[index].taken);
    now.used = atomic_load(&vcuda_slot()->use[index].used);
    return now;
}

bool account_still(const struct account_instant *first, const struct account_instant *second)
{
    return first->begun == first->ended && first->begun == second->begun && first->used == second->used;
}

uint64_t account_most(const struct account_instant *first, const struct account_instant *second)
{
    return first->used + (second->taken - first->taken);
}

void account_managed(unsigned index, int64_t bytes)
{
    atomic_fetch_add_explicit(&traffic[index].managed, bytes, memory_order_relaxed);
}

bool account_has_managed(unsigned index)
{
    return atomic_load_explicit(&traffic[index].managed, memory_order_relaxed) > 0;
}

static void bring(struct region_slot *slot)
{
    for (unsigned i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&slot->use[i].used, atomic_load(&mine[i].bytes));
}

void account_start(void)
{
    vcuda_on_slot(bring);
}

void account_forget(void)
{
    for (unsigned i = 0; i <= ACCOUNT_ANY; i++) {
        atomic_store(&traffic[i].begun, 0);
        atomic_store(&traffic[i].ended, 0);
        atomic_store(&traffic[i].managed, 0);
    }
    memset(mine, 0, sizeof mine);
}
