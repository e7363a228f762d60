/*
 * Kernels that wait for kernels of other processes, as the ranks of a job exchange data: each ends when so many have begun.
 *
 * In: a kernel's name, the job that this process belongs to (VCUDA_EMULATOR_JOB). Out: whether the others have begun. Not here: streams.
 * One number in the state for each job and name counts the kernels that began, ever. The first kernel of each process belongs together, then the second, and
 * so on: a process begins one after the other. One that was killed before it began lets the others wait for ever; one that had begun does not.
 */
#ifndef VCUDA_EMULATOR_EXCHANGE_H
#define VCUDA_EMULATOR_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

struct exchange;

/* NULL: there are too many of them. */
struct exchange *exchange_find(const char *name);
/* This process's next kernel begins. How many must have begun, in all, before it ends. Under driver_lock(). */
uint64_t exchange_begin(struct exchange *exchange, unsigned ranks);
bool exchange_is_reached(const struct exchange *exchange, uint64_t needed);

#endif
