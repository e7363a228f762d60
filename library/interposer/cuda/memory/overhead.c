/*
 * Overhead; see overhead.h. Where NVML is missing, or never lists this process (a driver that does not translate pids between namespaces), a
 * context is taken for CONTEXT_GUESS: what the small ones have, so that nobody is refused for memory that he does not use.
 */
#include "overhead.h"

#include <time.h>
#include <unistd.h>

#include "account.h"
#include "held.h"
#include "interposer/cuda/hooks.h"
#include "ordinals.h"
#include "relief.h"

#define CONTEXT_GUESS (UINT64_C(256) << 20)

enum { ATTEMPTS = 4, PATIENCE_MS = 200 };
static const uint64_t every_ns = UINT64_C(1000000000), soonest_ns = UINT64_C(50000000);

_Atomic uint32_t overhead_changes, overhead_measured;
static _Atomic uint64_t last_ns;
static _Atomic uint32_t measuring;  /* pid of the process whose thread is at it, or 0 */
static _Atomic bool listed[LIMITS_MAX_DEVICES];    /* by NVML, once */

static void publish(unsigned index, uint64_t bytes, bool may_fall)
{
    _Atomic uint64_t *overhead = &vcuda_slot()->use[index].overhead;

    if (may_fall || bytes > atomic_load(overhead))
        atomic_store(overhead, bytes);
}

static uint64_t beyond(uint64_t held, uint64_t charged)
{
    return held > charged ? held - charged : 0;
}

static void publish_unlisted(unsigned index, enum held answer)
{
    if (!atomic_load(&listed[index]))
        publish(index, CONTEXT_GUESS, false);
    else if (answer == HELD_NOTHING)
        publish(index, 0, true);
}

/* With the pools as they are now: one may have given memory back since it was last read. */
static struct account_instant look(unsigned index)
{
    relief_read(index);
    return account_look(index);
}

/* One reading. True: it was taken at rest and is published, or there is nothing to wait for. False: `least` may have become less. */
static bool measure(unsigned index, int device, uint64_t *least)
{
    uint64_t held;
    struct account_instant before = look(index);
    enum held answer = held_ask(index, device, &held);
    struct account_instant after = look(index);

    if (answer != HELD_KNOWN) {
        publish_unlisted(index, answer);
        return true;
    }
    uint64_t bytes = beyond(held, before.used > after.used ? before.used : after.used);
    atomic_store(&listed[index], true);
    if (account_still(&before, &after)) {
        publish(index, bytes, !account_has_managed(index));
        return true;
    }
    *least = bytes < *least ? bytes : *least;
    return false;
}

/*
 * Where allocations never rest, a reading may hold blocks that neither account saw: taken for overhead, they would be refused to the
 * application for a second. The least of several is not; a single one counts only where nothing is known yet.
 */
static void measure_device(unsigned index, int device, int attempts)
{
    uint64_t least = UINT64_MAX;

    for (int attempt = 0; attempt < attempts; attempt++) {
        if (measure(index, device, &least))
            return;
    }
    if (attempts >= ATTEMPTS || atomic_load(&vcuda_slot()->use[index].overhead) == 0)
        publish(index, least, false);
}

/* One thread at a time, for NVML's session is the process's; a holder of another pid was left behind by a fork. */
static bool enter(void)
{
    uint32_t self = (uint32_t)getpid(), holder;

    for (int wait = 0; wait < PATIENCE_MS; wait++) {
        holder = 0;
        if (atomic_compare_exchange_strong(&measuring, &holder, self) ||
            (holder != self && atomic_compare_exchange_strong(&measuring, &holder, self)))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

/* Where NVML hangs, the thread that is in it is the only one to wait: everybody else goes on after his patience, with what is known. */
static void measure_all(int attempts)
{
    uint32_t changes = atomic_load(&overhead_changes);

    if (!enter()) {
        atomic_store(&overhead_measured, changes);
        return;
    }
    changes = atomic_load(&overhead_changes);
    for (unsigned index = 0; index < vcuda_limits()->device_count; index++) {
        int device = ordinals_get(index);
        if (device >= 0)
            measure_device(index, device, attempts);
    }
    atomic_store(&overhead_measured, changes);
    atomic_store(&measuring, 0);
}

static uint64_t follow(uint64_t now_ns)
{
    uint64_t last = atomic_load(&last_ns);

    if (last != 0 && now_ns - last < soonest_ns)
        return last + soonest_ns;
    atomic_store(&last_ns, now_ns);
    measure_all(ATTEMPTS);
    return now_ns + every_ns;
}

void overhead_changed(void)
{
    vcuda_helper_add(follow);
    vcuda_helper_wake(follow);
}

/* Primary contexts are retained again and again: what is counted already is looked at again by whoever allocates next. */
void overhead_context_created(unsigned index)
{
    if (atomic_load(&vcuda_slot()->use[index].overhead) != 0) {
        overhead_module_changed();
        return;
    }
    measure_all(ATTEMPTS);
    overhead_changed();
}

void overhead_module_changed(void)
{
    atomic_fetch_add(&overhead_changes, 1);
    overhead_changed();
}

/* Once: it is called with an allocation under way, so that the figure can only rise. */
void overhead_settle_now(void)
{
    measure_all(1);
}

void overhead_forget(void)
{
    atomic_store(&last_ns, 0);
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&listed[i], false);
}
