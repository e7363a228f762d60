/*
 * What the driver holds for this process beyond what it was asked for: contexts, modules, local memory, the padding of allocations.
 *
 * In: contexts and modules that come and go. Out: this process's `overhead` in the region. Right after a context was made; then on the helper
 * thread, once a second and soon after a module appeared, and by the first allocation after it, if that comes sooner. Not here: NVML (held.h).
 * Invariant: while allocations are under way the figure may rise and does not fall.
 */
#ifndef VCUDA_MEMORY_OVERHEAD_H
#define VCUDA_MEMORY_OVERHEAD_H

#include <stdatomic.h>
#include <stdint.h>

void overhead_changed(void);

/* A module or the like came or went: whoever allocates before the helper thread has measured it measures it himself (overhead_settle). */
void overhead_module_changed(void);
void overhead_settle_now(void);

extern _Atomic uint32_t overhead_changes, overhead_measured;

static inline void overhead_settle(void)
{
    if (atomic_load_explicit(&overhead_changes, memory_order_relaxed) != atomic_load_explicit(&overhead_measured, memory_order_relaxed))
        overhead_settle_now();
}

/* Measured before it returns: whoever allocates at once after it has made a context must not find the context's memory uncounted. */
void overhead_context_created(unsigned index);

/* In a child after fork. */
void overhead_forget(void);

#endif
