/*
 * What measured work costs, twice: at once, with what the neighbours have told so far, and again when their measurements of that time must be there.
 *
 * In: stretches of this process, with the batch they are of. Out: charges to the budget, corrections of them, estimates, this process's presence.
 * Not here: how stretches are measured (harvest.c). All of it under the limiter's harvest lock.
 */
#ifndef VCUDA_COMPUTE_SETTLE_H
#define VCUDA_COMPUTE_SETTLE_H

#include "waits.h"

struct measured {
    struct interval stretch;
    uint64_t own_ns;                    /* of it, this process's GPU time, as far as is known */
    bool exact;                         /* the stream was at work all the time: it says what the launches take */
    bool estimated;                     /* the stretch was made as long as the estimates: they are what it costs */
    bool unplaced;                      /* nothing says when in the stretch they were at work: other streams' work was perhaps not beside them */
    struct waits_bill bill;
};

uint64_t settle_share(struct limiter *limiter, struct interval part, uint64_t now);

/* Charges what was not charged before, publishes it, learns. The batch is the callee's from here on. */
void settle_begin(struct limiter *limiter, struct batch *batch, const struct measured *measured, uint64_t now);
/* Corrects what is due. */
void settle_due(struct limiter *limiter, uint64_t now);

#endif
