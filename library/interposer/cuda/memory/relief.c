/* Relief; see relief.h. */
#include "relief.h"

#include <pthread.h>

#include "account.h"
#include "interposer/cuda/hooks.h"
#include "ordinals.h"
#include "pools.h"

enum { ACTIVE_MS = 50 };

struct graphs {
    uint64_t charged;
};

static struct graphs graphs[LIMITS_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool graphs_possible;

CUstreamCaptureMode relief_begin_relaxed(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    if (DRIVER(cuThreadExchangeStreamCaptureMode, &mode) != CUDA_SUCCESS)
        return CU_STREAM_CAPTURE_MODE_RELAXED;
    return mode;
}

void relief_end_relaxed(CUstreamCaptureMode mode)
{
    DRIVER(cuThreadExchangeStreamCaptureMode, &mode);
}

bool relief_read_pool(const void *handle, uint64_t *reserved)
{
    uint64_t bytes = 0;

    if (DRIVER(cuMemPoolGetAttribute, (CUmemoryPool)(uintptr_t)handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS)
        return false;
    *reserved = bytes;
    return true;
}

static void trim_pool(const void *handle)
{
    DRIVER(cuMemPoolTrimTo, (CUmemoryPool)(uintptr_t)handle, 0);
}

static void charge_graphs(unsigned index, uint64_t bytes)
{
    struct graphs *known = &graphs[index];

    pthread_mutex_lock(&lock);
    if (bytes > known->charged)
        account_record(index, bytes - known->charged);
    else
        account_give(index, known->charged - bytes);
    known->charged = bytes;
    pthread_mutex_unlock(&lock);
}

static void read_graphs(unsigned index)
{
    uint64_t bytes = 0;
    int device = ordinals_get(index);

    if (device >= 0 && atomic_load_explicit(&graphs_possible, memory_order_relaxed) &&
        DRIVER(cuDeviceGetGraphMemAttribute, device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS)
        charge_graphs(index, bytes);
}

void relief_read(unsigned index)
{
    if (pools_any())
        pools_read_device((int)index, relief_read_pool);
    read_graphs(index);
}

bool relief_trim(unsigned index)
{
    int device = ordinals_get(index);
    bool has_graphs = atomic_load(&graphs_possible);

    if (!pools_any() && !has_graphs)
        return false;
    CUstreamCaptureMode mode = relief_begin_relaxed();
    pools_visit(index, trim_pool);
    if (has_graphs && device >= 0)
        DRIVER(cuDeviceGraphMemTrim, device);
    relief_end_relaxed(mode);
    relief_read(index);
    return true;
}

static uint64_t follow(uint64_t now_ns)
{
    CUstreamCaptureMode mode = relief_begin_relaxed();

    for (unsigned index = 0; index < vcuda_limits()->device_count; index++)
        relief_read(index);
    relief_end_relaxed(mode);
    return now_ns + ACTIVE_MS * UINT64_C(1000000);
}

void relief_follow(void)
{
    vcuda_helper_add(follow);
}

void relief_note_graphs(void)
{
    atomic_store_explicit(&graphs_possible, true, memory_order_relaxed);
    relief_follow();
}

void relief_forget(void)
{
    for (unsigned i = 0; i < LIMITS_MAX_DEVICES; i++)
        graphs[i].charged = 0;
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    atomic_store(&graphs_possible, false);
}
