/*
 * Free ranges of addresses: given in, taken out, neighbours joined.
 *
 * In: unused ranges. Out: the lowest place that is large enough. Not here: what the addresses mean, and locking, which is the
 * caller's. Invariant: two free ranges that touch within one `within` are one.
 */
#ifndef VCUDA_EMULATOR_RANGES_H
#define VCUDA_EMULATOR_RANGES_H

#include <stdbool.h>

#include "spans.h"

struct ranges {
    struct spans free;
};

/* Joined only with neighbours that lie in [low, high): what was made separately stays separate. */
struct bounds {
    uint64_t low, high;
};

/* Without memory for the record the range is lost, which costs addresses and nothing else. */
void ranges_give(struct ranges *ranges, uint64_t start, uint64_t size, struct bounds within);
bool ranges_take(struct ranges *ranges, uint64_t size, uint64_t alignment, uint64_t *start);
bool ranges_take_at(struct ranges *ranges, uint64_t start, uint64_t size);  /* exactly there; false: not all of it is free */

#endif
