/* The accounting of device memory, for the rest of the interposer: its start. In: cuInit. Out: nothing. Idempotent and cheap. */
#ifndef VCUDA_MEMORY_MEMORY_H
#define VCUDA_MEMORY_MEMORY_H

void memory_start(void);

#endif
