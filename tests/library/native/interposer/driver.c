/*
 * A libcuda.so.1 with every function of the table and next to nothing behind them: for tests of which function answers, not of what it does.
 *
 * Compiled with DRIVER_VERSION (rows above it do not exist), WITHOUT (these neither; a version script hides the names of both) and DISTINCT
 * (cuGetProcAddress hands out other addresses than the symbol table, as a driver may) and NEWER (a name of which it has a version that no table knows, brought
 * by DRIVER_VERSION, and one from before CUDA 2). Its own calls of its exports go through the PLT.
 * `driver_calls(symbol)` tells how often a function was called.
 */
#include "driver.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum function {
#define CUDA(symbol, base, version, stream, parameters, arguments) FUNCTION_##symbol,
#include "cuda_functions.h"
#undef CUDA
    FUNCTION_COUNT
};

static _Atomic unsigned calls[FUNCTION_COUNT];

/* What bodies.c does not define does nothing. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    __attribute__((weak)) CUresult body_##symbol parameters                                                            \
    {                                                                                                                  \
        return CUDA_SUCCESS;                                                                                           \
    }
#include "cuda_functions.h"
#undef CUDA

#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    CUresult symbol parameters                                                                                         \
    {                                                                                                                  \
        atomic_fetch_add(&calls[FUNCTION_##symbol], 1);                                                                                    \
        return body_##symbol arguments;                                                                                \
    }                                                                                                                  \
    static CUresult other_##symbol parameters                                                                          \
    {                                                                                                                  \
        atomic_fetch_add(&calls[FUNCTION_##symbol], 1);                                                                                    \
        return body_##symbol arguments;                                                                                \
    }
#include "cuda_functions.h"
#undef CUDA

const struct row rows[] = {
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    {#symbol, #base, version, #stream, (void *)symbol, (void *)other_##symbol},
#include "cuda_functions.h"
#undef CUDA
};

const unsigned row_count = FUNCTION_COUNT;

unsigned driver_calls(const char *symbol)
{
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        if (strcmp(rows[i].symbol, symbol) == 0)
            return calls[i];
    }
    abort();
}
