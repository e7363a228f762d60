/*
 * Entry points of prefetches: of managed memory and, on a machine where GPUs can use all memory (VCUDA_EMULATOR_HMM), of the application's own.
 *
 * In: a range and where it is wanted. Out: the cost of moving it. Managed memory is charged for already; the application's own takes memory of the GPU from
 * here on until the same range is wanted on the host, or the process ends. What does not fit stays where it is: a prefetch is advice.
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

static CUresult move(uint64_t start, uint64_t bytes, int device)
{
    struct stretch first;
    CUresult result = CUDA_SUCCESS;
    memory_lock();
    const struct allocation *found = allocation_holding(start);
    bool own = found == NULL && driver.hmm;
    if (bytes == 0 || (!own && (found == NULL || found->kind != ALLOCATION_MANAGED)) || !allocation_covers(start, bytes, own, false, &first))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && own)
        bring_back(start);
    if (result == CUDA_SUCCESS && own && device != HOST)
        take_over(start, bytes, device);
    memory_unlock();
    return result;
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
