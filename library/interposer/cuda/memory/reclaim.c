/* Reclaiming; see reclaim.h. */
#include "reclaim.h"

#include <stdatomic.h>

#include "account.h"
#include "interposer/cuda/hooks.h"
#include "ordinals.h"
#include "pools.h"

enum { ACTIVE_MS = 50 };

/* What the driver keeps for graphs is a pool of each device without a handle: these stand for it. */
static const char graph_pools[LIMITS_MAX_DEVICES];
static _Atomic uint32_t graphs_noted;  /* a bit for each device */

/* What a thread may do while any other one captures: only so are these calls no danger to a capture. */
CUstreamCaptureMode reclaim_begin(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    if (DRIVER(cuThreadExchangeStreamCaptureMode, &mode) != CUDA_SUCCESS)
        return CU_STREAM_CAPTURE_MODE_RELAXED;
    return mode;
}

void reclaim_end(CUstreamCaptureMode mode)
{
    DRIVER(cuThreadExchangeStreamCaptureMode, &mode);
}

/* The device whose graphs' memory it stands for; -1: it is a pool. */
static int graphs_of(const void *handle)
{
    uintptr_t at = (uintptr_t)handle - (uintptr_t)graph_pools;

    return at < LIMITS_MAX_DEVICES ? ordinals_get((unsigned)at) : -1;
}

static bool is_graphs(const void *handle)
{
    return (uintptr_t)handle - (uintptr_t)graph_pools < LIMITS_MAX_DEVICES;
}

bool reclaim_read_pool(const void *handle, uint64_t *reserved)
{
    uint64_t bytes = 0;
    int device = graphs_of(handle);
    CUresult error;

    if (is_graphs(handle) && device < 0)
        return false;
    if (is_graphs(handle))
        error = DRIVER(cuDeviceGetGraphMemAttribute, device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes);
    else
        error = DRIVER(cuMemPoolGetAttribute, (CUmemoryPool)(uintptr_t)handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    *reserved = bytes;
    return error == CUDA_SUCCESS;
}

static void trim_pool(const void *handle)
{
    if (!is_graphs(handle))
        DRIVER(cuMemPoolTrimTo, (CUmemoryPool)(uintptr_t)handle, 0);
    else if (graphs_of(handle) >= 0)
        DRIVER(cuDeviceGraphMemTrim, graphs_of(handle));
}

struct pool *reclaim_graphs(unsigned index)
{
    struct pool *pool = pools_of(&graph_pools[index], index);

    if (pool != NULL)
        pools_watch(pool);
    return pool;
}

void reclaim_read(unsigned index)
{
    if (pools_any())
        pools_read_device((int)index, reclaim_read_pool);
}

bool reclaim_trim(unsigned index)
{
    if (!pools_any())
        return false;
    CUstreamCaptureMode mode = reclaim_begin();
    pools_visit(index, trim_pool);
    reclaim_end(mode);
    reclaim_read(index);
    return true;
}

static uint64_t follow(uint64_t now_ns)
{
    CUstreamCaptureMode mode = reclaim_begin();

    for (unsigned index = 0; index < vcuda_limits()->device_count; index++)
        reclaim_read(index);
    reclaim_end(mode);
    return now_ns + ACTIVE_MS * UINT64_C(1000000);
}

void reclaim_follow(void)
{
    vcuda_helper_add(follow);
}

void reclaim_note_graphs(void)
{
    for (unsigned index = 0; index < vcuda_limits()->device_count; index++) {
        uint32_t bit = UINT32_C(1) << index;
        if ((atomic_load_explicit(&graphs_noted, memory_order_relaxed) & bit) == 0 && reclaim_graphs(index) != NULL)
            atomic_fetch_or(&graphs_noted, bit);
    }
    reclaim_follow();
}

void reclaim_forget(void)
{
    atomic_store(&graphs_noted, 0);
}
