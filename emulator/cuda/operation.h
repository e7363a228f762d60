/*
 * Memory operations of streams: waits for a word, and writes of one.
 *
 * In: the operation, when all work before it in its stream is done. Out: whether it is over. Not here: when that is (host.c).
 */
#ifndef VCUDA_EMULATOR_OPERATION_H
#define VCUDA_EMULATOR_OPERATION_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct operation {
    CUdeviceptr address;
    uint64_t value;
    unsigned size;              /* 4 or 8 bytes */
    unsigned flags;             /* of a wait: how the word is compared */
    bool wait;
};

/* Calls memory/: without driver_lock(). A word that is not there any more holds up nobody. */
bool operation_perform(const struct operation *operation);

#endif
