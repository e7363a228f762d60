/*
 * The time that was charged already: the union of a process's stretches on one GPU, so that streams that overlap are paid for once.
 *
 * In: stretches [start, end), in any order. Out: the parts that were in none before. Not here: what a part costs.
 * Invariant: intervals are kept in order and apart; the oldest are forgotten when there are too many, and what is older than them is new again.
 */
#ifndef VCUDA_COMPUTE_COVER_H
#define VCUDA_COMPUTE_COVER_H

#include <stdint.h>

enum { COVER_INTERVALS = 128 };

struct interval {
    uint64_t start, end;
};

struct cover {
    unsigned count;
    struct interval intervals[COVER_INTERVALS];
};

/* Adds [start, end) and writes its new parts, in order. There are at most COVER_INTERVALS + 1. */
unsigned cover_add(struct cover *cover, struct interval added, struct interval parts[static COVER_INTERVALS + 1]);

#endif
