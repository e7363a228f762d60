/*
 * Launches that wait for another GPU: what of their time is work, and what the rest costs.
 *
 * In: a batch of one launch and how long it took. Out: what it is charged. Not here: which launches can wait (estimates.h), charging (settle.c).
 *
 * The ranks of a job exchange data in kernels that wait, on the GPU, until the other ranks' kernels run too. Charged in full, a wait of d is followed by
 * a pause of d (1 - r) / r, r the limit: the peer waits that long at its next exchange, and below one half of a GPU pauses and waits grow without end.
 * So a wait is charged WAITING_TIMES what the limit earns during it. It is then followed by a pause of d (WAITING_TIMES - 1), half of it: with
 * each exchange the disturbance halves, whatever the limits and however many ranks. A wait for a rank with a smaller limit, at each step, halves as well.
 * A program that hides work as waiting gets 1 / WAITING_TIMES of the GPU's turns, two thirds; a limit above that charges waits in full.
 *
 * The least time that such a launch took lately, alone, is its work. What took WAITS_FROM times as long once, waits: from then on everything
 * beyond its work is a wait. Before that, all of it is work: launches whose work varies are charged for it. Kernels whose work varies more than that,
 * that have few blocks or are cooperative, and graphs of this kind, are charged too little: no less than the bound above. While the least is not
 * known, WAITS_UNKNOWN_NS are work. What has a wide grid, and is not cooperative, never waits: it could not be on the GPU as a whole.
 *
 * A launch's own time is known only if it is measured alone, which costs two marks. A launch that can wait is measured with others until their batch took
 * far longer than expected, and what it took longer is a wait; from then on alone, until it has not waited for a while.
 */
#ifndef VCUDA_COMPUTE_WAITS_H
#define VCUDA_COMPUTE_WAITS_H

#include "limiter.h"

#define WAITING_TIMES 1.5
#define WAITS_FROM UINT64_C(4)
#define WAITS_UNKNOWN_NS UINT64_C(20000000)

/* What a stretch costs: until then it is work, behind it the launch waited. */
struct waits_bill {
    uint64_t work_ns, work_until;
    uint64_t waiting_ns;
};

/* `own_ns`: this process's GPU time in the stretch. */
struct waits_bill waits_bill(struct limiter *limiter, const struct batch *batch, struct interval stretch, uint64_t own_ns, uint64_t now);

/* What a part of a stretch costs in which the launch waited. */
uint64_t waits_cost(const struct limiter *limiter, struct interval part, uint64_t own_ns);

/* The batch took so long, as far as is known now; and when everything is known. */
void waits_see(const struct batch *batch, uint64_t own_ns);
void waits_learn(const struct batch *batch, uint64_t own_ns);

#endif
