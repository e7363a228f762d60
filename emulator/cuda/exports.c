/*
 * The exported functions, made from the tables: each counts its call, answers for a driver that is not initialised, and goes to its entry (entry.h)
 * or says that it is not supported.
 * The ones that CUDA's documentation lets be called before cuInit are named here.
 */
#include <stdbool.h>
#include <string.h>

#include "calls.h"
#include "entry.h"
#include "host.h"
#include "session.h"

_Atomic uint64_t calls_made[SYMBOL_COUNT];

static inline bool is_early(enum symbol symbol)
{
    switch (symbol) {
    case SYMBOL_cuInit:
    case SYMBOL_cuDriverGetVersion:
    case SYMBOL_cuGetProcAddress:
    case SYMBOL_cuGetProcAddress_v2:
    case SYMBOL_cuGetErrorName:
    case SYMBOL_cuGetErrorString:
    case SYMBOL_cuGetExportTable:
        return true;
    default:
        return false;
    }
}

static inline CUresult begin_call(enum symbol symbol)
{
    count_call(symbol);
    if (!is_early(symbol) && atomic_load_explicit(&session_state, memory_order_acquire) != SESSION_READY)
        return session_error();
    return !is_early(symbol) && host_calling ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

#define CUDA(symbol, base, version, stream, parameters, arguments)                                                                   \
    CUresult symbol parameters                                                                                                       \
    {                                                                                                                                \
        CUresult error_ = begin_call(SYMBOL_##symbol);                                                                               \
        return error_ != CUDA_SUCCESS ? error_ : entry_##symbol arguments;                                                           \
    }
#include <cuda_functions.h>
#undef CUDA

#define UNSUPPORTED(symbol, base, version, stream)                                                                                   \
    CUresult symbol(void)                                                                                                            \
    {                                                                                                                                \
        CUresult error_ = begin_call(SYMBOL_##symbol);                                                                               \
        return error_ != CUDA_SUCCESS ? error_ : CUDA_ERROR_NOT_SUPPORTED;                                                           \
    }
#include "unsupported_functions.h"
#undef UNSUPPORTED

static const char *const names[] = {
#define CUDA(symbol, base, version, stream, parameters, arguments) #symbol,
#include <cuda_functions.h>
#undef CUDA
#define UNSUPPORTED(symbol, base, version, stream) #symbol,
#include "unsupported_functions.h"
#undef UNSUPPORTED
};

/* For tests: how often this process called the symbol. */
__attribute__((visibility("default"))) uint64_t vcuda_emulator_calls(const char *symbol);

uint64_t vcuda_emulator_calls(const char *symbol)
{
    for (unsigned i = 0; i < SYMBOL_COUNT; i++) {
        if (strcmp(names[i], symbol) == 0)
            return atomic_load(&calls_made[i]);
    }
    return 0;
}
