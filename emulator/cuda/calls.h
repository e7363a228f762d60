/* How often each entry point was called in this process, for tests; see README.md. */
#ifndef VCUDA_EMULATOR_CALLS_H
#define VCUDA_EMULATOR_CALLS_H

#include <stdatomic.h>
#include <stdint.h>

enum symbol {
#define CUDA(symbol, base, version, stream, parameters, arguments) SYMBOL_##symbol,
#include <cuda_functions.h>
#undef CUDA
#define UNSUPPORTED(symbol, base, version, stream) SYMBOL_##symbol,
#include "unsupported_functions.h"
#undef UNSUPPORTED
    SYMBOL_COUNT
};

extern _Atomic uint64_t calls_made[SYMBOL_COUNT];

static inline void count_call(enum symbol symbol)
{
    atomic_fetch_add_explicit(&calls_made[symbol], 1, memory_order_relaxed);
}

#endif
