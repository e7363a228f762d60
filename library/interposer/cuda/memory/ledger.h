/*
 * What the processes of one container have of a device's memory together: asking, giving back, summing, on the words of abi/region.h.
 *
 * In: the region, this process's slot, a device's position in the limits file, the limit. Out: taken or not. Not here: which limit holds, what
 * is done before an allocation is refused (account.h), who clears a dead process's slot (state.h).
 * A slot of one's own outside the region (it had none left) is summed as if it were the last one.
 * Invariants: whatever was granted and is not given back, overhead included, was never above the limit at the instant of a grant; a refusal is
 * based on figures that were all true at one instant, or on a competitor that held a reservation for longer than LEDGER_PATIENCE_NS. No lock between
 * processes: one that is killed at any instruction leaves words in its own slot alone.
 */
#ifndef VCUDA_MEMORY_LEDGER_H
#define VCUDA_MEMORY_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "abi/region.h"
#include "short_lock.h"

#define LEDGER_PATIENCE_NS UINT64_C(500000000)
#define LEDGER_CONTEXT_PATIENCE_NS UINT64_C(10000000000)

/*
 * What this process has of a device, out of reach for those who write into the region. Who changes the process's words there, but `overhead`, holds the
 * lock: so nobody else changes them, and they are stored and not added to. Other processes, which may be killed, need no lock and see the stores in order.
 */
struct ledger_own {
    _Alignas(64) struct short_lock lock;
    _Atomic uint64_t bytes;     /* never more than `used` of its slot, as long as nobody else writes that, and never taken beyond the limit */
    _Atomic uint64_t taken;     /* all bytes that were ever taken or recorded, given back or not */
    _Atomic uint64_t takes, gives;      /* how often, recording left out: counted before `used` rises, and after it fell */
};

/* Called while somebody else's reservation is in the way, now and then: it may be a dead process's. */
typedef unsigned ledger_reaper(void);

bool ledger_take(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes, uint64_t limit, ledger_reaper *reap);

/*
 * For what will be in `overhead` afterwards, such as a context: the bytes stay in `pending` until ledger_unreserve. Granted also where they do not
 * fit if nobody has or reserves anything there. Waits longer for others: who has reserved is making a context.
 */
bool ledger_reserve(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes, uint64_t limit, ledger_reaper *reap);
void ledger_unreserve(struct ledger_own *mine, struct region_slot *own, unsigned device, uint64_t bytes);

/* Counts what the driver has handed out already, over the limit or not. */
void ledger_record(struct ledger_own *mine, struct region *region, struct region_slot *own, unsigned device, uint64_t bytes);

/* Gives back; never below zero, whatever happened to the slot. */
void ledger_give(struct ledger_own *mine, struct region_slot *own, unsigned device, uint64_t bytes);

#endif
