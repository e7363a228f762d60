/* See foreign_work.h. */
#include "foreign_work.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PLACES = 64, LEGACY = PLACES };

static _Atomic uint64_t counts[PLACES + 1];

/* CU_STREAM_PER_THREAD is another stream in each thread. */
static unsigned place_of(CUstream stream)
{
    uint64_t handle = stream == CU_STREAM_PER_THREAD ? (uint64_t)pthread_self() : (uint64_t)(uintptr_t)stream;
    if (stream == NULL || stream == CU_STREAM_LEGACY)
        return LEGACY;
    return (unsigned)(handle * UINT64_C(0x9E3779B97F4A7C15) >> 58);
}

void foreign_work_put(CUstream stream)
{
    atomic_fetch_add(&counts[place_of(stream)], 1);
}

uint64_t foreign_work_count(CUstream stream)
{
    unsigned place = place_of(stream);
    uint64_t legacy = atomic_load(&counts[LEGACY]);
    return place == LEGACY ? legacy : legacy + atomic_load(&counts[place]);
}
