/*
 * Whose an allocation is: with which context it ends.
 *
 * In: contexts that stand for green ones. Out: the owner of what the calling thread allocates now. What is allocated while a green context is
 * current lies in the primary context and ends with it: a green context has a share of the multiprocessors of its own, and no memory.
 */
#ifndef VCUDA_MEMORY_OWNERS_H
#define VCUDA_MEMORY_OWNERS_H

#include "interposer/cuda/hooks.h"

/* The current context; NULL: none. And the owner of what is allocated while it is. */
CUcontext owners_context(void);
const void *owners_of(CUcontext current);
const void *owners_current(void);

/* What all green contexts of a device stand for. */
const void *owners_green(CUdevice device);

#endif
