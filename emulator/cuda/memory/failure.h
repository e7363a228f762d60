/*
 * Failures that a test asks for: VCUDA_EMULATOR_FAIL=cuMemAlloc_v2:3,cuMemCreate:1 lets the third call of the one and the first of
 * the other say CUDA_ERROR_OUT_OF_MEMORY. Calls are counted from the first one after the process began, over all threads.
 * In: the variable, read once. Out: whether this call is the one. Costs a load where nothing is asked for.
 */
#ifndef VCUDA_EMULATOR_FAILURE_H
#define VCUDA_EMULATOR_FAILURE_H

#include <stdbool.h>

bool failure_due(const char *function);

#endif
