/*
 * cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync, each for both meanings of the null stream.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY. What is allocated in a capture is the graph's, which is
 * charged for it when it is launched (graphs.h); nothing is refused here.
 */
#include "charging.h"
#include "ordered.h"
#include "reclaim.h"
#include "stream_device.h"

static bool not_ours(const void *out, CUstream stream, bool per_thread)
{
    if (hook_nested() || out == NULL || !account_needed())
        return true;
    if (!stream_captures(stream, per_thread))
        return false;
    reclaim_note_graphs();
    return true;
}

static CUresult free_in(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    return per_thread ? DRIVER(cuMemFreeAsync_ptsz, pointer, stream) : DRIVER(cuMemFreeAsync, pointer, stream);
}

static CUresult keep(struct ordered *ordered, CUresult error, const CUdeviceptr *pointer, CUstream stream, bool per_thread)
{
    if (error != CUDA_SUCCESS) {
        ordered_fail(ordered);
        return error;
    }
    if (ordered_end(ordered, *pointer))
        return error;
    free_in(*pointer, stream, per_thread);
    ordered_undone(ordered);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult alloc(CUdeviceptr *pointer, size_t bytes, CUstream stream, bool per_thread)
{
    struct ordered ordered;

    ordered_find_current(&ordered, stream);
    if (!ordered_begin(&ordered, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = per_thread ? DRIVER(cuMemAllocAsync_ptsz, pointer, bytes, stream) : DRIVER(cuMemAllocAsync, pointer, bytes, stream);
    return keep(&ordered, error, pointer, stream, per_thread);
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return not_ours(pointer, stream, false) ? real.cuMemAllocAsync(pointer, bytes, stream) : alloc(pointer, bytes, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return not_ours(pointer, stream, true) ? real.cuMemAllocAsync_ptsz(pointer, bytes, stream) : alloc(pointer, bytes, stream, true);
}

static CUresult alloc_from(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream, bool per_thread)
{
    struct ordered ordered;

    ordered_find(&ordered, pool);
    if (!ordered_begin(&ordered, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = per_thread ? DRIVER(cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream)
                                : DRIVER(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream);
    return keep(&ordered, error, pointer, stream, per_thread);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return not_ours(pointer, stream, false) ? real.cuMemAllocFromPoolAsync(pointer, bytes, pool, stream)
                                            : alloc_from(pointer, bytes, pool, stream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return not_ours(pointer, stream, true) ? real.cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream)
                                           : alloc_from(pointer, bytes, pool, stream, true);
}

static CUresult free_ordered(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    struct uncharging uncharging;

    uncharge_begin(&uncharging, &charged_pointers, pointer);
    CUresult error = free_in(pointer, stream, per_thread);
    uncharge_end(&uncharging, error);
    return error;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    if (hook_nested() || !charges_ever(&charged_pointers) || stream_captures(stream, false))
        return real.cuMemFreeAsync(pointer, stream);
    return free_ordered(pointer, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    if (hook_nested() || !charges_ever(&charged_pointers) || stream_captures(stream, true))
        return real.cuMemFreeAsync_ptsz(pointer, stream);
    return free_ordered(pointer, stream, true);
}
