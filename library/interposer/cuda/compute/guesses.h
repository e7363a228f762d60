/*
 * What a launch costs, whatever its grid: grids of about the same size are one entry of the estimates, and a new one of a known function begins with a guess.
 *
 * In: a launch's key. Out: its entry. Not here: the table (estimates.h). A graph has no grid and is its own entry.
 *
 * The number of blocks is rounded down to three significant bits: within an entry it differs by a quarter at most, and a function has no more than
 * some dozens of entries, however many grids a program has.
 * Between two known sizes a guess lies on the line between them; beyond them it is as many times the nearest as there are more or fewer blocks. A block of
 * another size is taken for as many of the known size as have its threads. The first measurement takes the guess's place.
 */
#ifndef VCUDA_COMPUTE_GUESSES_H
#define VCUDA_COMPUTE_GUESSES_H

#include "estimates.h"

/* No guess is more: it is reserved, and holds other launches back until the first is measured. */
#define GUESSES_MOST_NS 1e8

/* Never NULL. */
struct estimate *guesses_find(struct estimates *estimates, const struct launch_key *key);

#endif
