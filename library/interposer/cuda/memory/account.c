/* Accounting; see account.h. */
#include "account.h"

#include <pthread.h>

#include "interposer/cuda/hooks.h"
#include "ledger.h"
#include "overhead.h"
#include "reclaim.h"
#include "virtual_hooks.h"

struct traffic {
    _Alignas(64) _Atomic uint64_t begun;
    _Atomic uint64_t ended;
    _Atomic uint64_t taken;
    _Atomic int64_t managed;
};

#define REMEASURE_NS UINT64_C(10000000)

static _Atomic uint64_t measured_ns;                    /* when it was measured before a refusal */
static struct traffic traffic[LIMITS_MAX_DEVICES + 1];  /* the last: ACCOUNT_ANY */

/* What this process has, out of reach for those who write into the region. Never more than its slot's `used`, as long as nobody else does so. */
static _Atomic uint64_t own_bytes[LIMITS_MAX_DEVICES];

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

static uint64_t limit_of(unsigned index)
{
    const struct limits_device *limits = vcuda_device((int)index);

    return limits == NULL || limits->memory_bytes == 0 ? UINT64_MAX / 2 : limits->memory_bytes;
}

static bool hold(unsigned index, uint64_t bytes)
{
    uint64_t limit = limit_of(index), had = atomic_load(&own_bytes[index]);

    do {
        if (had > limit || bytes > limit - had)
            return false;
    } while (!atomic_compare_exchange_weak(&own_bytes[index], &had, had + bytes));
    return true;
}

static void let_go(unsigned index, uint64_t bytes)
{
    uint64_t had = atomic_load(&own_bytes[index]);

    while (!atomic_compare_exchange_weak(&own_bytes[index], &had, had > bytes ? had - bytes : 0))
        ;
}

/* A slot is claimed first: who gets none gets no memory. */
static bool take_once(struct region *region, unsigned index, uint64_t bytes)
{
    struct region_slot *own = vcuda_slot();

    if (vcuda_memory_closed() || !ledger_take(region, own, index, bytes, limit_of(index), vcuda_reap))
        return false;
    if (hold(index, bytes))
        return true;
    ledger_give(own, index, bytes);
    return false;
}

/* After it is charged and before the driver is asked: a reader of first `taken` and then `used` misses nothing. */
static void count_taken(unsigned index, uint64_t bytes)
{
    atomic_fetch_add(&traffic[index].taken, bytes);
}

static bool take_counted(struct region *region, unsigned index, uint64_t bytes)
{
    bool taken = take_once(region, index, bytes);

    if (taken)
        count_taken(index, bytes);
    return taken;
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
    if (take_counted(region, index, bytes))
        return true;
    return reclaim_trim(index) && take_counted(region, index, bytes);
}

static void count_refusal(struct region *region, unsigned index)
{
    atomic_fetch_add_explicit(&region->devices[index].refusals, 1, memory_order_relaxed);
}

bool account_try(unsigned index, uint64_t bytes)
{
    struct region *region = vcuda_region();

    if (region == NULL)
        return false;
    vcuda_helper_poll();
    overhead_settle();
    return take_counted(region, index, bytes);
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
    if (account_try(index, bytes) || charge_after_reclaim(index, bytes))
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
    account_begin(span, index);
    if (account_try(index, bytes) || charge_after_reclaim(index, bytes))
        return true;
    account_end(span);
    return false;
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
    return ledger_reserve(vcuda_region(), vcuda_slot(), index, bytes, limit_of(index), vcuda_reap);
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
    ledger_unreserve(vcuda_slot(), index, bytes);
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
    let_go(index, bytes);
    ledger_give(vcuda_slot(), index, bytes);
}

void account_record(unsigned index, uint64_t bytes)
{
    struct region *region = vcuda_region();

    if (region == NULL || bytes == 0)
        return;
    ledger_record(region, vcuda_slot(), index, bytes);
    atomic_fetch_add(&own_bytes[index], bytes);
    count_taken(index, bytes);
}

void account_begin(struct account_span *span, unsigned index)
{
    span->index = index;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &span->cancel_state);
    atomic_fetch_add(&traffic[index].begun, 1);
}

void account_end(const struct account_span *span)
{
    atomic_fetch_add(&traffic[span->index].ended, 1);
    pthread_setcancelstate(span->cancel_state, NULL);
}

struct account_instant account_look(unsigned index)
{
    struct account_instant now;

    now.ended = atomic_load(&traffic[index].ended) + atomic_load(&traffic[ACCOUNT_ANY].ended);
    now.begun = atomic_load(&traffic[index].begun) + atomic_load(&traffic[ACCOUNT_ANY].begun);
    now.taken = atomic_load(&traffic[index].taken);
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
        atomic_store(&slot->use[i].used, atomic_load(&own_bytes[i]));
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
        atomic_store(&traffic[i].taken, 0);
        atomic_store(&traffic[i].managed, 0);
    }
    for (unsigned i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&own_bytes[i], 0);
}
