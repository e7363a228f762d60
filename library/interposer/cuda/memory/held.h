/*
 * How much of a GPU the driver holds for this process, all told, as NVML reports it.
 *
 * In: a device's position in the limits and its ordinal. Out: bytes. For the poller thread alone: it loads NVML, which may be slow or hang.
 * Invariants: NVML enters the process through our own libnvidia-ml.so.1, from our own directory, so that an application that opens it later
 * by its name gets ours and not the real one behind it. What may be another process's is never given out (held.c says how that is known).
 */
#ifndef VCUDA_MEMORY_HELD_H
#define VCUDA_MEMORY_HELD_H

#include <stdbool.h>
#include <stdint.h>

enum held {
    HELD_KNOWN,
    HELD_NOTHING,       /* NVML works and does not list this process: it holds nothing, or is known elsewhere (MPS) */
    HELD_UNKNOWN,       /* no NVML, or it cannot say for certain */
};

/* Loads NVML where it is not, or could not be the last time. Cheap on repeat. */
void held_load(void);

/* `there`: the driver holds something for this process on the device at present. */
enum held held_ask(unsigned index, int device, bool there, uint64_t *bytes);

#endif
