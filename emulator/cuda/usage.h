/*
 * The shared account of a GPU's memory: what is physically there, minus what is reserved, scripted (vcuda-emulator) and in use by every live CUDA
 * process of the machine. Atomic between processes; a process that dies returns all it had as soon as another process looks.
 * Charges are whole bytes as given: rounding is the caller's. Contexts and modules are charged here too, by their owners.
 */
#ifndef VCUDA_EMULATOR_USAGE_H
#define VCUDA_EMULATOR_USAGE_H

#include <stdbool.h>
#include <stdint.h>

/* False: there is not as much; nothing was taken. `device` is an ordinal of this process. */
bool usage_take(int device, uint64_t bytes);
void usage_give(int device, uint64_t bytes);
/* Memory of the device may outlive the process from here on. */
void usage_note_export(int device);
/* As cuMemGetInfo: total is what processes can have together (without what is reserved). */
void usage_totals(int device, uint64_t *free_bytes, uint64_t *total_bytes);

#endif
