/*
 * The soft limit: how much of a GPU's time a container may have now, its own share and what nobody wants.
 *
 * In: each container's row (its share, how far it may go beyond, when it last wanted the GPU), the time. Out: the rate in force. Not here: how the
 * rate is applied. A share is wanted while its owner launched, or waits to, within BORROW_ACTIVE_NS; then all of it is the owner's at once. What
 * is left is dealt out evenly to those who want more than their share, none beyond its soft limit.
 * Invariant: every container computes the same from the same rows, so that together they are given no more than the whole.
 */
#ifndef VCUDA_COMPUTE_BORROW_H
#define VCUDA_COMPUTE_BORROW_H

#include <stdint.h>

#define BORROW_ACTIVE_NS UINT64_C(100000000)

struct share {
    uint32_t cores, soft_cores;         /* percent; soft 0: no more than `cores` */
    uint64_t wanted_ns;
};

/* In thousandths of a percent. The poller counts as active: it is about to launch. */
uint32_t borrow_rate(struct share own, const struct share *others, unsigned count, uint64_t now);

#endif
