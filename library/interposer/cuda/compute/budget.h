/*
 * The budget of one device: GPU time that the container may still use, one number for all of its processes, in abi/region.h.
 *
 * In: the region, this process's words in it, the rate in force, the time. Out: what is available, how long until more is. Not here: who asks,
 * what a launch costs, sleeping.
 *
 * Nanoseconds of GPU time throughout. `available` = balance - everybody's estimates of what is launched and not measured. The balance grows with
 * wall time x rate, by the first process to ask; what was measured is taken from it, however far below zero that goes, and is paid back by waiting.
 * Processes of a container need not have the same clock (time namespaces): none credits more than what passed on its own since it credited last.
 * Invariants: wall time is credited at most once; `available` is never above the cap after a refill, so that in any window of length T no more
 * is granted than rate x T + cap + one request; no call waits for anybody.
 */
#ifndef VCUDA_COMPUTE_BUDGET_H
#define VCUDA_COMPUTE_BUDGET_H

#include <stdatomic.h>
#include <stdint.h>

#include "abi/region.h"

enum {
    BUDGET_WHOLE = 100000,              /* a rate is in thousandths of a percent: all of a GPU */
    BUDGET_LEAST = 1000,                /* below one percent nothing would ever be paid */
};

/* Deeper than this the balance does not go: no real kernel owes so much, but a region that somebody overwrote could. */
#define BUDGET_FLOOR_NS (INT64_C(-600) * 1000000000)

struct budget {
    struct region *_Atomic region;
    struct region_use *_Atomic own;     /* of this process: in the region, or, where all slots are taken, outside */
    unsigned device;                    /* position in the limits file */
    _Atomic uint32_t rate;
    _Atomic uint64_t credited_ns;       /* when this process credited last; 0: never */
};

/* Credits the time since the last refill and says what is available now. */
int64_t budget_refill(struct budget *budget, uint64_t now);

/* Launched, not measured. What is reserved is released, later, by the same amount. */
void budget_reserve(struct budget *budget, uint64_t ns);
void budget_release(struct budget *budget, uint64_t ns);

/* Takes what was used; a negative amount gives back what was taken too much. */
void budget_charge(struct budget *budget, int64_t ns);

/* Wall time until `ns` more are there. */
uint64_t budget_wait(const struct budget *budget, int64_t ns);

/* The most that is saved up while nobody launches: 50 ms of wall time, at least 20 ms of GPU time. */
int64_t budget_cap(uint32_t rate);

uint64_t budget_inflight(const struct budget *budget);

#endif
