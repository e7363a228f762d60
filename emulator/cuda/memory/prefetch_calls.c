/*
 * Entry points of prefetches and of advice: of managed memory and, on a machine where GPUs can use all memory (VCUDA_EMULATOR_HMM), of the application's own.
 *
 * In: a range and where it is wanted. Out: the cost of moving it. Managed memory is charged for already; the application's own takes memory of the GPU from
 * here on until the same range is wanted on the host, or the process ends. What does not fit stays where it is. Advice is checked, and moves nothing.
 */
#include <stdlib.h>

#include "../capture.h"
#include "../context.h"
#include "../entry.h"
#include "../session.h"
#include "../usage.h"
#include "allocation.h"

struct moved {
    uint64_t start, charge;
    int device;
    struct moved *next;
};

static struct moved *all;       /* under memory_lock() */

static void bring_back(uint64_t start)
{
    for (struct moved **at = &all; *at != NULL; at = &(*at)->next) {
        struct moved *found = *at;
        if (found->start != start)
            continue;
        *at = found->next;
        usage_give(found->device, found->charge);
        free(found);
        return;
    }
}

static void take_over(uint64_t start, uint64_t bytes, int device)
{
    uint64_t charge = (bytes + SPACE_UNIT - 1) / SPACE_UNIT * SPACE_UNIT;
    struct moved *made = malloc(sizeof *made);
    if (made == NULL || !usage_take(device, charge)) {
        free(made);
        return;
    }
    *made = (struct moved){start, charge, device, all};
    all = made;
}

/* Whether GPUs and host share the range, and whether it is the application's own. Under memory_lock(). */
static bool is_shared(uint64_t start, uint64_t bytes, bool *own)
{
    struct stretch first;
    const struct allocation *found = allocation_holding(start);
    *own = found == NULL && driver.hmm;
    return bytes != 0 && (*own || (found != NULL && found->kind == ALLOCATION_MANAGED)) && allocation_covers(start, bytes, *own, false, &first);
}

static CUresult move(uint64_t start, uint64_t bytes, int device)
{
    bool own;
    memory_lock();
    bool shared = is_shared(start, bytes, &own);
    if (shared && own)
        bring_back(start);
    if (shared && own && device != HOST)
        take_over(start, bytes, device);
    memory_unlock();
    return shared ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult advise(uint64_t start, uint64_t bytes, CUmem_advise advice, int device)
{
    bool own, located = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                        advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        return CUDA_ERROR_INVALID_VALUE;
    if (located && device != HOST && !device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    bool shared = is_shared(start, bytes, &own);
    memory_unlock();
    return shared ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult prefetch(uint64_t start, uint64_t bytes, int device, CUstream handle, bool per_thread)
{
    struct stream *stream;
    const struct work work = {.kind = WORK_COPY, .cost_ns = copy_cost(COPY_HOST_DEVICE, bytes)};
    CUresult result = stream_of(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS)
        result = device == HOST || device_valid(device) ? capture_forbids(stream) : CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        result = move(start, bytes, device);
    return result == CUDA_SUCCESS ? stream_enqueue(stream, &work, NULL) : result;
}

static CUresult prefetch_to(uint64_t start, uint64_t bytes, CUmemLocation location, unsigned flags, CUstream stream, bool per_thread)
{
    if (flags != 0 || location.type < CU_MEM_LOCATION_TYPE_DEVICE || location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CUDA_ERROR_INVALID_VALUE;
    return prefetch(start, bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : HOST, stream, per_thread);
}

_Static_assert((int)CU_DEVICE_CPU == (int)HOST, "the host is the same number");

ENTRY(cuMemPrefetchAsync)(CUdeviceptr pointer, size_t count, CUdevice target, CUstream stream)
{
    return prefetch(pointer, count, target, stream, false);
}

ENTRY(cuMemPrefetchAsync_ptsz)(CUdeviceptr pointer, size_t count, CUdevice target, CUstream stream)
{
    return prefetch(pointer, count, target, stream, true);
}

ENTRY(cuMemPrefetchAsync_v2)(CUdeviceptr pointer, size_t count, CUmemLocation location, unsigned int flags, CUstream stream)
{
    return prefetch_to(pointer, count, location, flags, stream, false);
}

ENTRY(cuMemPrefetchAsync_v2_ptsz)(CUdeviceptr pointer, size_t count, CUmemLocation location, unsigned int flags, CUstream stream)
{
    return prefetch_to(pointer, count, location, flags, stream, true);
}

ENTRY(cuMemAdvise)(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUdevice device)
{
    return advise(pointer, count, advice, device);
}

ENTRY(cuMemAdvise_v2)(CUdeviceptr pointer, size_t count, CUmem_advise advice, CUmemLocation location)
{
    return advise(pointer, count, advice, location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : HOST);
}
