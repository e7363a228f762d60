/* The hooks of virtual memory, for others: an array or the owner of arrays is gone, with what was mapped into them; a child after fork forgets it all. */
#ifndef VCUDA_MEMORY_VIRTUAL_HOOKS_H
#define VCUDA_MEMORY_VIRTUAL_HOOKS_H

void virtual_array_gone(const void *array);
void virtual_owner_gone(const void *owner);
void virtual_forget(void);

#endif
