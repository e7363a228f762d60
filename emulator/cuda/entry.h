/*
 * How an entry point is written: ENTRY(cuMemAlloc_v2)(CUdeviceptr *pointer, size_t bytes) { ... }, one for each row of cuda_functions.h. A row
 * without one answers CUDA_ERROR_NOT_SUPPORTED (unsupported_calls.c).
 *
 * exports.c makes the exported function of that name around it: it counts the call and answers for a driver that is not initialised, so an entry's
 * body runs only after cuInit and never in a forked child. One that calls another entry calls entry_NAME, which is not counted. The functions of
 * unsupported_functions.h have no entry.
 */
#ifndef VCUDA_EMULATOR_ENTRY_H
#define VCUDA_EMULATOR_ENTRY_H

#include <cuda.h>

#define ENTRY(symbol) CUresult entry_##symbol

#define CUDA(symbol, base, version, stream, parameters, arguments) CUresult entry_##symbol parameters;
#include <cuda_functions.h>
#undef CUDA

#define UNSUPPORTED(symbol, base, version, stream) __attribute__((visibility("default"))) CUresult symbol(void);
#include "unsupported_functions.h"
#undef UNSUPPORTED

#endif
