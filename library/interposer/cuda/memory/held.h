/*
 * How much of a GPU the driver holds for this process, all told, as NVML reports it.
 *
 * In: a device's position in the limits and its ordinal. Out: bytes. For the helper thread alone: it loads NVML and may take milliseconds.
 * Invariant: NVML enters the process through our own libnvidia-ml.so.1, from our own directory, so that an application that opens it later
 * by its name gets ours and not the real one behind it.
 */
#ifndef VCUDA_MEMORY_HELD_H
#define VCUDA_MEMORY_HELD_H

#include <stdbool.h>
#include <stdint.h>

enum held {
    HELD_KNOWN,
    HELD_NOTHING,       /* NVML works and does not list this process: it holds nothing, or goes by another pid there */
    HELD_UNKNOWN,       /* no NVML, or it cannot say */
};
enum held held_ask(unsigned index, int device, uint64_t *bytes);

#endif
