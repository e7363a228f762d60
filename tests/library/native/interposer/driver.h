/* See driver.c. */
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include "cuda.h"

#ifndef DRIVER_VERSION
#define DRIVER_VERSION 13000
#endif

struct row {
    const char *symbol, *base;
    int version;
    char stream[2];
    void *entry, *other;
};

extern const struct row rows[];
extern const unsigned row_count;

#define CUDA(symbol, base, version, stream, parameters, arguments) CUresult body_##symbol parameters;
#include "cuda_functions.h"
#undef CUDA

#pragma GCC visibility push(default)
unsigned driver_calls(const char *symbol);

/* What cuGetProcAddress said of cuMemGetInfo when cuInit asked it, as what cuInit loads does. */
extern void *driver_got;
#pragma GCC visibility pop

#endif
