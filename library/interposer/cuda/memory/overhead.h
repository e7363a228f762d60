/*
 * What the driver holds for this process beyond what it was asked for: contexts, modules, local memory, the padding of allocations.
 *
 * In: contexts and modules that come and go. Out: this process's `overhead` in the region. Right after a context was made; then on the helper
 * thread, once a second and soon after a module appeared. Not here: NVML (held.h). Invariant: while allocations are under way the figure may rise and does not fall.
 */
#ifndef VCUDA_MEMORY_OVERHEAD_H
#define VCUDA_MEMORY_OVERHEAD_H

void overhead_changed(void);

/* Measured before it returns: whoever allocates at once after it has made a context must not find the context's memory uncounted. */
void overhead_context_created(void);

/* In a child after fork. */
void overhead_forget(void);

#endif
