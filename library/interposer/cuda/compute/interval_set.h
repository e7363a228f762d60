/*
 * The time that was charged already: the union of a process's stretches on one GPU, so that streams that overlap are paid for once.
 *
 * In: stretches [start, end), in any order. Out: the parts that were in none before. Not here: what a part costs.
 * Invariant: intervals are kept in order and apart; the oldest are forgotten when there are too many, and what is older than them is new again.
 */
#ifndef VCUDA_COMPUTE_INTERVAL_SET_H
#define VCUDA_COMPUTE_INTERVAL_SET_H

#include <stdint.h>

enum { INTERVAL_SET_MOST = 128 };

struct interval {
    uint64_t start, end;
};

struct interval_set {
    unsigned count;
    struct interval intervals[INTERVAL_SET_MOST];
};

/* Adds [start, end) and writes its new parts, in order. There are at most INTERVAL_SET_MOST + 1. */
unsigned interval_set_add(struct interval_set *set, struct interval added, struct interval parts[static INTERVAL_SET_MOST + 1]);

/* The same parts, and the set stays as it is. */
unsigned interval_set_new_parts(const struct interval_set *set, struct interval part, struct interval parts[static INTERVAL_SET_MOST + 1]);

#endif
