/*
 * What the driver holds for this process beyond what it was asked for: contexts, modules, local memory, the padding of allocations.
 *
 * In: contexts and modules that come and go. Out: this process's `overhead` in the region. NVML is asked by the poller thread (state.h) alone: soon after
 * a context or a module appeared, and once a second. Not here: NVML (held.h).
 * Bounds: NVML is loaded while the driver makes the first context. A thread that allocates or asks for free memory after a context or a module appeared waits
 * until it is counted, OVERHEAD_PATIENCE_MS at most: on a busy machine the poller's turn comes late, and what is not counted others take. If it is not
 * counted by then, a context counts as `overhead_expected`, and nobody waits again until NVML answers in that time. The figure is right as soon as NVML has answered, and other processes of the container see it then.
 * Invariants: nothing that is charged is ever taken for overhead, whatever comes and goes while NVML is asked; while allocations are under way the figure
 * may rise and does not fall.
 */
#ifndef VCUDA_MEMORY_OVERHEAD_H
#define VCUDA_MEMORY_OVERHEAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { OVERHEAD_PATIENCE_MS = 5000 };

/* A context is about to be made on a limited device. */
void overhead_expect(void);

/* What a context takes that is not measured: the least that one of this container took, a guess before any was measured. */
uint64_t overhead_expected(unsigned index);

/* NVML has said it once. */
bool overhead_is_measured(unsigned index);

/*
 * NVML has said it once, and cannot be asked at present: what it said last says nothing of what came since. What only NVML can tell is refused until it answers
 * again; who waits for it waits as for one that is slow.
 */
bool overhead_is_lost(unsigned index);

/* It may have become less, unseen: measured when there is time. */
void overhead_changed(void);

/* A context, a module or the like appeared or is gone: an allocation before it is measured waits for it (overhead_settle). */
void overhead_grew(void);
void overhead_settle_now(void);

extern _Atomic uint32_t overhead_changes, overhead_measured;

static inline void overhead_settle(void)
{
    if (atomic_load_explicit(&overhead_changes, memory_order_relaxed) != atomic_load_explicit(&overhead_measured, memory_order_relaxed))
        overhead_settle_now();
}

/* From now on what is known follows this process into each slot that it claims. */
void overhead_start(void);

/* In a child after fork. */
void overhead_forget(void);

#endif
