/*
 * Rows of cuda_functions.h that have no entry of their own: what library/ hooks and the emulator does not emulate (README.md, "CUDA"). They answer
 * CUDA_ERROR_NOT_SUPPORTED.
 */
#include "entry.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                                   \
    __attribute__((weak)) ENTRY(symbol) parameters                                                                                   \
    {                                                                                                                                \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                                             \
    }
#include <cuda_functions.h>
#undef CUDA
