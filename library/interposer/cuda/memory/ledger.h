/*
 * What the processes of one container have of a device's memory together: asking, giving back, summing, on the words of abi/region.h.
 *
 * In: the region, this process's slot, a device's position in the limits file, the limit. Out: taken or not. Not here: which limit holds, what
 * is done before an allocation is refused (account.h), who clears a dead process's slot (state.h).
 * A slot of one's own outside the region (it had none left) is summed as if it were the last one.
 * Invariants: whatever was granted and is not given back, overhead included, was never above the limit at the instant of a grant; a refusal is
 * based on figures that were all true at one instant, or on a competitor that held a reservation for longer than LEDGER_PATIENCE_NS. No lock:
 * a process that is killed at any instruction leaves words in its own slot alone.
 */
#ifndef VCUDA_MEMORY_LEDGER_H
#define VCUDA_MEMORY_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "abi/region.h"

#define LEDGER_PATIENCE_NS UINT64_C(500000000)
#define LEDGER_CONTEXT_PATIENCE_NS UINT64_C(10000000000)

/* Called while somebody else's reservation is in the way, now and then: it may be a dead process's. */
typedef unsigned ledger_reaper(void);

bool ledger_take(struct region *region, struct region_slot *own, unsigned device, uint64_t bytes, uint64_t limit, ledger_reaper *reap);

/*
 * For what will be in `overhead` afterwards, such as a context: the bytes stay in `pending` until ledger_unreserve. Granted also where they do not
 * fit if nobody has or reserves anything there. Waits longer for others: who has reserved is making a context.
 */
bool ledger_reserve(struct region *region, struct region_slot *own, unsigned device, uint64_t bytes, uint64_t limit, ledger_reaper *reap);
void ledger_unreserve(struct region_slot *own, unsigned device, uint64_t bytes);

/* Counts what the driver has handed out already, over the limit or not. */
void ledger_record(struct region *region, struct region_slot *own, unsigned device, uint64_t bytes);

/* Gives back; never below zero, whatever happened to the slot. */
void ledger_give(struct region_slot *own, unsigned device, uint64_t bytes);

#endif
