/*
 * The hooks of virtual memory, for others: an array or the owner of arrays is gone, with what was mapped into them; a child after fork forgets it all.
 * And what virtual_hooks.c and sharing_hooks.c share: the lock around backing.h, which is not held over a call of the driver.
 */
#ifndef VCUDA_MEMORY_VIRTUAL_HOOKS_H
#define VCUDA_MEMORY_VIRTUAL_HOOKS_H

#include "backing.h"
#include "cuda.h"

void virtual_array_gone(const void *array);
void virtual_owner_gone(const void *owner);
void virtual_forget(void);

void virtual_lock(void);
void virtual_unlock(void);
void virtual_give_back(const struct backing_loss *loss);
/* Nothing was created or imported; or there is. */
bool virtual_not_ours(void);
void virtual_count(void);

/* The GPU whose memory lies there; false: it is the machine's. */
bool virtual_device_at(const CUmemLocation *location, CUdevice *device);

/* Gives back what was exported and nobody holds any more, and counts what dead processes of the container leave to this one. */
void sharing_settle(void);
void sharing_forget(void);

#endif
