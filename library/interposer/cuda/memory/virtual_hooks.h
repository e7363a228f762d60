/* The hooks of virtual memory: nothing for others but to forget it all in a child after fork. */
#ifndef VCUDA_MEMORY_VIRTUAL_HOOKS_H
#define VCUDA_MEMORY_VIRTUAL_HOOKS_H

void virtual_forget(void);

#endif
