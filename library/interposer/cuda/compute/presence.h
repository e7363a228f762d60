/*
 * Who was on the GPU when: this process's slot in its activity row, and what all the other slots say.
 *
 * In: stretches of this process, the rows of the GPU (neighbours.h). Out: the part of a stretch that was this process's own, which is the integral
 * of dt / n(t), n(t) the processes that were on the GPU at t, because the GPU slices its time between processes. Not here: mapping rows, charging.
 *
 * A stretch is known to the others only once it is measured; until then `busy_since` speaks for it. What is computed right after a stretch is
 * therefore provisional, and computed again when the neighbours' measurements must be there.
 * Invariants: each slot counts once at any instant; a row that is being written is read without waiting.
 * A neighbour can write anything into its row: it is trusted for times alone, for none in the future, and for no more GPU time than its limit gives it
 * (claim.h); what one look reads and keeps is bounded, and shared out evenly between rows.
 */
#ifndef VCUDA_COMPUTE_PRESENCE_H
#define VCUDA_COMPUTE_PRESENCE_H

#include <stddef.h>
#include <stdint.h>

#include "abi/activity.h"
#include "claim.h"
#include "edges.h"
#include "interval_set.h"

enum {
    PRESENCE_ROWS = 64,                 /* containers on one GPU; a slice is at least one percent, but rows of ended grants may linger */
};

struct presence_other {
    const struct activity_row *row;
    struct claim *claim;                /* NULL: it is believed */
};

struct presence {
    struct activity_row *_Atomic row;   /* the container's own, or NULL */
    struct activity_slot *_Atomic own;  /* this process's slot in it, or NULL */
    struct presence_other others[PRESENCE_ROWS];
    unsigned other_count;
    _Atomic int64_t ahead_ns;           /* of our clock before the node's, in which rows are written */
};

/* A time of ours in the node's clock, and back. */
static inline uint64_t presence_told(const struct presence *presence, uint64_t ns)
{
    return ns - (uint64_t)atomic_load_explicit(&presence->ahead_ns, memory_order_relaxed);
}

static inline uint64_t presence_heard(const struct presence *presence, uint64_t ns)
{
    return ns + (uint64_t)atomic_load_explicit(&presence->ahead_ns, memory_order_relaxed);
}

/* ---- writing, in the node's clock; one thread at a time ---- */

void presence_publish(struct activity_slot *own, struct interval stretch);

/* There is unmeasured work since `since`, or, for 0, none. */
void presence_busy(struct activity_slot *own, uint64_t since, uint64_t now);

/* Work begins: for any thread, at any time. Cheap where there is some already. */
static inline void presence_begin(struct activity_slot *own, uint64_t now)
{
    uint64_t idle = 0;
    if (own != NULL && atomic_load_explicit(&own->busy_since_ns, memory_order_relaxed) == 0) {
        atomic_store_explicit(&own->heartbeat_ns, now, memory_order_relaxed);
        atomic_compare_exchange_strong_explicit(&own->busy_since_ns, &idle, now, memory_order_release, memory_order_relaxed);
    }
}

/* ---- reading, in ours ---- */

/* GPU time of this process in a stretch of its own. `edges`: where it is worked out, one user at a time. */
uint64_t presence_share(const struct presence *presence, struct interval stretch, uint64_t now, struct edges *edges);

/*
 * When, in that stretch, this process had had `own_ns` of it; its end if that is not in it. For a time some milliseconds ago: of what the others have not
 * measured yet only long kernels count, because who launches small ones says to be busy between them too.
 */
uint64_t presence_reach(const struct presence *presence, struct interval stretch, uint64_t own_ns, uint64_t now, struct edges *edges);

/* What was worked out last is what is charged: each neighbour's part of it is drawn from what it may claim. */
void presence_draw(const struct presence *presence, const struct edges *edges);

#endif
