/*
 * What a stream waits for, and what the host or the bus does in its turn (stream_work.h): foreign work. An event that a whole context waits for counts as
 * one in the legacy stream, which all others may wait for.
 */
#include "interposer/cuda/memory/memory.h"
#include "stream_work.h"

/* ---- waits, host functions, memory operations ---- */

FOREIGN_PAIR(cuStreamWaitEvent, _ptsz, stream, (CUstream stream, CUevent event, unsigned int flags), stream, event, flags)
FOREIGN_PAIR(cuStreamWaitValue32, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags), stream, address, value,
             flags)
FOREIGN_PAIR(cuStreamWaitValue32_v2, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags), stream, address,
             value, flags)
FOREIGN_PAIR(cuStreamWaitValue64, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags), stream, address, value,
             flags)
FOREIGN_PAIR(cuStreamWaitValue64_v2, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags), stream, address,
             value, flags)
FOREIGN_PAIR(cuStreamWriteValue32, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags), stream, address,
             value, flags)
FOREIGN_PAIR(cuStreamWriteValue32_v2, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags), stream, address,
             value, flags)
FOREIGN_PAIR(cuStreamWriteValue64, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags), stream, address,
             value, flags)
FOREIGN_PAIR(cuStreamWriteValue64_v2, _ptsz, stream, (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags), stream, address,
             value, flags)
FOREIGN_PAIR(cuStreamBatchMemOp, _ptsz, stream, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *parameters, unsigned int flags),
             stream, count, parameters, flags)
FOREIGN_PAIR(cuStreamBatchMemOp_v2, _ptsz, stream, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *parameters, unsigned int flags),
             stream, count, parameters, flags)
FOREIGN_PAIR(cuLaunchHostFunc, _ptsz, stream, (CUstream stream, CUhostFn function, void *data), stream, function, data)
FOREIGN_PAIR(cuLaunchHostFunc_v2, _ptsz, stream, (CUstream stream, CUhostFn function, void *data, unsigned int mode), stream, function, data, mode)
FOREIGN_PAIR(cuStreamAddCallback, _ptsz, stream, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), stream, callback,
             data, flags)
FOREIGN(cuCtxWaitEvent, NULL, (CUcontext context, CUevent event), context, event)
FOREIGN(cuGreenCtxWaitEvent, NULL, (CUgreenCtx context, CUevent event), context, event)
FOREIGN_PAIR(cuSignalExternalSemaphoresAsync, _ptsz, stream, (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS
             *parameters, unsigned int count, CUstream stream), semaphores, parameters, count, stream)
FOREIGN_PAIR(cuWaitExternalSemaphoresAsync, _ptsz, stream, (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS
             *parameters, unsigned int count, CUstream stream), semaphores, parameters, count, stream)

/* ---- where managed memory is: not on a GPU of others ---- */

static bool is_there_for_us(CUdevice target)
{
    return memory_may_be_at(&(CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = target});
}

static bool are_there_for_us(const CUmemLocation *locations, size_t count)
{
    bool all = true;
    for (size_t i = 0; locations != NULL && i < count && all; i++)
        all = memory_may_be_at(&locations[i]);
    return all;
}

#define PREFETCH(symbol, stream, allowed, parameters, ...)                                                             \
    CUresult symbol parameters                                                                                         \
    {                                                                                                                  \
        if (!(allowed))                                                                                                \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        FOREIGN_PASS(symbol, stream, __VA_ARGS__)                                                                      \
    }

#define PREFETCH_PAIR(symbol, suffix, stream, allowed, parameters, ...)                                                \
    PREFETCH(symbol, stream, allowed, parameters, __VA_ARGS__)                                                         \
    PREFETCH(symbol##suffix, own_stream(stream), allowed, parameters, __VA_ARGS__)

PREFETCH_PAIR(cuMemPrefetchAsync, _ptsz, stream, is_there_for_us(target), (CUdeviceptr pointer, size_t count, CUdevice target, CUstream stream),
              pointer, count, target, stream)
PREFETCH_PAIR(cuMemPrefetchAsync_v2, _ptsz, stream, memory_may_be_at(&location), (CUdeviceptr pointer, size_t count, CUmemLocation location,
              unsigned int flags, CUstream stream), pointer, count, location, flags, stream)
PREFETCH_PAIR(cuMemPrefetchBatchAsync, _ptsz, stream, are_there_for_us(locations, location_count), (CUdeviceptr *pointers, size_t *sizes, size_t
              count, CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream), pointers,
              sizes, count, locations, location_indices, location_count, flags, stream)
FOREIGN_PAIR(cuMemDiscardBatchAsync, _ptsz, stream, (CUdeviceptr *pointers, size_t *sizes, size_t count, unsigned long long flags, CUstream stream),
             pointers, sizes, count, flags, stream)
PREFETCH_PAIR(cuMemDiscardAndPrefetchBatchAsync, _ptsz, stream, are_there_for_us(locations, location_count), (CUdeviceptr *pointers, size_t *sizes,
              size_t count, CUmemLocation *locations, size_t *location_indices, size_t location_count, unsigned long long flags, CUstream stream),
              pointers, sizes, count, locations, location_indices, location_count, flags, stream)
FOREIGN_PAIR(cuStreamAttachMemAsync, _ptsz, stream, (CUstream stream, CUdeviceptr pointer, size_t length, unsigned int flags), stream, pointer,
             length, flags)
