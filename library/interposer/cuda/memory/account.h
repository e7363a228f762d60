/*
 * The one way into the ledger for every hook: takes and gives back under the limits that hold now.
 *
 * In: a device, bytes. Out: granted or not. Not here: which call was hooked, region arithmetic (ledger.h), what relieves a full device (reclaim.h).
 * Invariants: before a refusal dead processes' memory was collected, pools were read and their unused memory trimmed; every refusal is
 * counted once; where the limits cannot be read, or there is no memory for a region, nothing is granted.
 */
#ifndef VCUDA_MEMORY_ACCOUNT_H
#define VCUDA_MEMORY_ACCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi/limits.h"
#include "cuda.h"

enum verdict {
    VERDICT_PASS,       /* not our business: the driver's answer as it is */
    VERDICT_COUNT,
    VERDICT_REFUSE,     /* CUDA_ERROR_OUT_OF_MEMORY, whatever is asked for */
};

/* What becomes of an allocation on a device; `index` is its position in the limits where it counts. */
enum verdict account_verdict(int device, unsigned *index);

/* The same of the calling thread's current context; without one the driver says what is wrong. */
enum verdict account_verdict_current(unsigned *index);
/* For who knows what context that is. */
enum verdict account_verdict_of(CUcontext current, unsigned *index);

/* False where no allocation can count: nothing is limited. */
bool account_needed(void);

bool account_charge(unsigned index, uint64_t bytes);
/*
 * account_begin and account_charge of a call of the driver; false: refused, and ended. What the driver holds beyond what is charged is measured outside of
 * the span, within which its figure cannot fall; once more before a refusal that it alone would be the reason of.
 */
struct account_span;
bool account_open(struct account_span *span, unsigned index, uint64_t bytes);
void account_uncharge(unsigned index, uint64_t bytes);

/* Its steps, for who does something between them: once, without reclaiming; whatever may make room; a refusal in the end. */
bool account_try(unsigned index, uint64_t bytes);
void account_reclaim(unsigned index);
void account_refused(unsigned index);

/*
 * The same for what will count as overhead once it is there: it stands in the way of others until it is given back, and is granted whatever
 * the limit where the container has nothing on the device. Before a refusal the same is done as before that of an allocation.
 */
bool account_reserve(unsigned index, uint64_t bytes);
void account_unreserve(unsigned index, uint64_t bytes);

/* Whether the container has more of a device than it may: what the driver took went beyond what was asked for. The second one counts a refusal. */
bool account_is_over(unsigned index);
bool account_overrun(unsigned index);

/* Counts what the driver has handed out already, over the limit or not. */
void account_record(unsigned index, uint64_t bytes);

/*
 * Between begin and end the driver's figures and ours may differ. Allocation: before taking, after the driver answered; free: around both. The
 * thread is not cancelled in between: it would leave what it reserved, or a lock. ACCOUNT_ANY: which device is not known beforehand.
 */
enum { ACCOUNT_ANY = LIMITS_MAX_DEVICES };
struct account_span {
    unsigned index;
    int cancel_state;
};
void account_begin(struct account_span *span, unsigned index);
void account_end(const struct account_span *span);
/* account_uncharge of what was in it, and account_end. */
void account_close(const struct account_span *span, uint64_t bytes);

/*
 * What the ledger said of this process at an instant. `still` of two of them: nothing was under way at the first, and nothing began before
 * the second. `most`: at no instant between them had the driver given out more than that of what is charged, whatever came and went.
 */
struct account_instant {
    uint64_t begun, ended, used;
    uint64_t taken;     /* all that was ever charged, given back or not */
};
struct account_instant account_look(unsigned index);
bool account_still(const struct account_instant *first, const struct account_instant *second);
uint64_t account_most(const struct account_instant *first, const struct account_instant *second);

/* Managed memory is charged in full, wherever it lies at present; so is what a context may take for its limits. */
void account_managed(unsigned index, int64_t bytes);
bool account_has_managed(unsigned index);

/* From now on what this process has follows it into each slot that it claims. */
void account_start(void);

/* In a child after fork. */
void account_forget(void);

#endif
