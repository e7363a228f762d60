/*
 * How a stretch of GPU time is divided: the beginnings and ends of all others that were there, put in order, and a walk along them.
 *
 * In: parts of the stretch, each of a slot (a process), each slot of an owner (a container). Out: the integral of dt / n(t), n(t) the slots there at t
 * and one more, for whom it is asked; where it reaches an amount; how much of the stretch went to each owner. Not here: where parts come from.
 * Invariants: a slot counts once at any instant, however many of its parts overlap; all of it takes time in proportion to the parts, in whatever order
 * they come; what does not fit is left out, and the caller shares out the room.
 */
#ifndef VCUDA_COMPUTE_EDGES_H
#define VCUDA_COMPUTE_EDGES_H

#include <stdbool.h>
#include <stdint.h>

#include "interval_set.h"

enum { EDGES_MOST = 8192, EDGES_SLOTS = EDGES_MOST / 2, EDGES_OWNERS = 65 };

struct edges_slot {
    uint16_t depth;                     /* of its parts, those open here */
    uint16_t owner;
};

struct edges_owner {
    int present;                        /* of its slots, those there now */
    double since;                       /* the integral when that was last changed */
    double taken_ns;
};

/* Too large for a stack. */
struct edges {
    struct interval stretch;
    unsigned shift;                     /* times are kept in 32 bits from its start */
    unsigned count, room, slot_count, owner_count;
    uint64_t keys[EDGES_MOST], spare[EDGES_MOST];
    struct edges_slot slots[EDGES_SLOTS + 1];
    struct edges_owner owners[EDGES_OWNERS];
};

struct edges_walk {
    uint64_t at;
    double had_ns;
};

void edges_begin(struct edges *edges, struct interval stretch, unsigned owners);

/* From here on so many edges may be added: an equal part of what is left for `sharers` such. */
void edges_share(struct edges *edges, unsigned sharers);
static inline bool edges_full(const struct edges *edges)
{
    return edges->count + 2 > edges->room;
}

/* Another slot of that owner. What is added next is its. */
void edges_slot(struct edges *edges, unsigned owner);
void edges_add(struct edges *edges, struct interval part);

/* Along the stretch until `most_ns` is had, or to its end. Once. */
struct edges_walk edges_walk(struct edges *edges, double most_ns);

#endif
