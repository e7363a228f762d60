/*
 * Copies and fills (stream_work.h). Fills and copies within the device take GPU time and are launches: what they cost is learned by their kind and size.
 * Copies over the bus or between GPUs are foreign work.
 *
 * A copy whose sides only its pointers tell is asked about. A batch with one copy within the device is a launch, all of it. Functions with addresses of 32 bits, which no program
 * since CUDA 3.2 has, are foreign work, whatever they copy; so are batches of 3D copies, and 3D copies between contexts.
 */
#include "stream_work.h"

enum kind { FILLED, COPIED, DECOMPRESSED, KINDS };
enum { UNIT_BYTES = 4096, LEAST_UNITS = 1024, MOST_UNITS = 1 << 30 };

static const char kinds[KINDS];

/* As if each 4 KiB were a block of the same kernel. A move of nothing takes as long as one of some MiB takes longer. */
static struct launch_key key_of(enum kind kind, size_t bytes)
{
    size_t units = bytes / UNIT_BYTES + LEAST_UNITS;
    return launch_key(&kinds[kind], units > MOST_UNITS ? MOST_UNITS : (uint32_t)units, 1, 1, 1, 1, 1);
}

static struct launch_key copied(size_t bytes)
{
    return key_of(COPIED, bytes);
}

static struct launch_key filled(size_t bytes)
{
    return key_of(FILLED, bytes);
}

static struct launch_key decompressed(size_t count)
{
    return key_of(DECOMPRESSED, count * UNIT_BYTES);
}

/* ---- which copies are within the device ---- */

/* Whose memory it is; -1: no device's. */
static int device_of(CUdeviceptr pointer)
{
    unsigned type = 0;
    int device = -1;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type, &device};
    CUresult error = DRIVER(cuPointerGetAttributes, 2, wanted, values, pointer);
    return error == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE ? device : -1;
}

static bool is_one_device(CUdeviceptr target, CUdeviceptr source)
{
    int device = device_of(target);
    return device >= 0 && device_of(source) == device;
}

/* While something is captured it is asked in the mode in which no question can harm a capture. */
static bool is_on_device(CUdeviceptr target, CUdeviceptr source)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (atomic_load_explicit(&compute_captures, memory_order_relaxed) == 0)
        return is_one_device(target, source);
    if (DRIVER(cuThreadExchangeStreamCaptureMode, &mode) != CUDA_SUCCESS)
        return false;
    bool is_on = is_one_device(target, source);
    DRIVER(cuThreadExchangeStreamCaptureMode, &mode);
    return is_on;
}

static bool is_side_on_device(CUmemorytype type, CUdeviceptr pointer)
{
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY || (type == CU_MEMORYTYPE_UNIFIED && is_on_device(pointer, pointer));
}

static bool is_2d_on_device(const CUDA_MEMCPY2D *copy)
{
    return copy != NULL && is_side_on_device(copy->srcMemoryType, copy->srcDevice) && is_side_on_device(copy->dstMemoryType, copy->dstDevice);
}

static bool is_3d_on_device(const CUDA_MEMCPY3D *copy)
{
    return copy != NULL && is_side_on_device(copy->srcMemoryType, copy->srcDevice) && is_side_on_device(copy->dstMemoryType, copy->dstDevice);
}

static bool is_batch_on_device(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *sizes, size_t count)
{
    bool is = false;
    for (size_t i = 0; targets != NULL && sources != NULL && sizes != NULL && i < count && !is; i++)
        is = is_on_device(targets[i], sources[i]);
    return is;
}

static size_t sum(const size_t *sizes, size_t count)
{
    size_t all = 0;
    for (size_t i = 0; i < count; i++)
        all += sizes[i];
    return all;
}

/* ---- fills ---- */

FOREIGN(cuMemsetD8, NULL, (CUdeviceptr_v1 target, unsigned char value, unsigned int count), target, value, count)
MOVED_PAIR(cuMemsetD8_v2, _ptds, NULL, filled(count * sizeof value), (CUdeviceptr target, unsigned char value, size_t count), target, value, count)
MOVED_PAIR(cuMemsetD8Async, _ptsz, stream, filled(count * sizeof value), (CUdeviceptr target, unsigned char value, size_t count, CUstream stream),
           target, value, count, stream)
FOREIGN(cuMemsetD16, NULL, (CUdeviceptr_v1 target, unsigned short value, unsigned int count), target, value, count)
MOVED_PAIR(cuMemsetD16_v2, _ptds, NULL, filled(count * sizeof value), (CUdeviceptr target, unsigned short value, size_t count), target, value,
           count)
MOVED_PAIR(cuMemsetD16Async, _ptsz, stream, filled(count * sizeof value), (CUdeviceptr target, unsigned short value, size_t count, CUstream stream),
           target, value, count, stream)
FOREIGN(cuMemsetD32, NULL, (CUdeviceptr_v1 target, unsigned int value, unsigned int count), target, value, count)
MOVED_PAIR(cuMemsetD32_v2, _ptds, NULL, filled(count * sizeof value), (CUdeviceptr target, unsigned int value, size_t count), target, value, count)
MOVED_PAIR(cuMemsetD32Async, _ptsz, stream, filled(count * sizeof value), (CUdeviceptr target, unsigned int value, size_t count, CUstream stream),
           target, value, count, stream)
FOREIGN(cuMemsetD2D8, NULL, (CUdeviceptr_v1 target, unsigned int pitch, unsigned char value, unsigned int width, unsigned int height), target,
        pitch, value, width, height)
MOVED_PAIR(cuMemsetD2D8_v2, _ptds, NULL, filled(width * height * sizeof value), (CUdeviceptr target, size_t pitch, unsigned char value, size_t
           width, size_t height), target, pitch, value, width, height)
MOVED_PAIR(cuMemsetD2D8Async, _ptsz, stream, filled(width * height * sizeof value), (CUdeviceptr target, size_t pitch, unsigned char value, size_t
           width, size_t height, CUstream stream), target, pitch, value, width, height, stream)
FOREIGN(cuMemsetD2D16, NULL, (CUdeviceptr_v1 target, unsigned int pitch, unsigned short value, unsigned int width, unsigned int height), target,
        pitch, value, width, height)
MOVED_PAIR(cuMemsetD2D16_v2, _ptds, NULL, filled(width * height * sizeof value), (CUdeviceptr target, size_t pitch, unsigned short value, size_t
           width, size_t height), target, pitch, value, width, height)
MOVED_PAIR(cuMemsetD2D16Async, _ptsz, stream, filled(width * height * sizeof value), (CUdeviceptr target, size_t pitch, unsigned short value, size_t
           width, size_t height, CUstream stream), target, pitch, value, width, height, stream)
FOREIGN(cuMemsetD2D32, NULL, (CUdeviceptr_v1 target, unsigned int pitch, unsigned int value, unsigned int width, unsigned int height), target,
        pitch, value, width, height)
MOVED_PAIR(cuMemsetD2D32_v2, _ptds, NULL, filled(width * height * sizeof value), (CUdeviceptr target, size_t pitch, unsigned int value, size_t
           width, size_t height), target, pitch, value, width, height)
MOVED_PAIR(cuMemsetD2D32Async, _ptsz, stream, filled(width * height * sizeof value), (CUdeviceptr target, size_t pitch, unsigned int value, size_t
           width, size_t height, CUstream stream), target, pitch, value, width, height, stream)

/* ---- copies within the device ---- */

FOREIGN(cuMemcpyDtoD, NULL, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned int bytes), target, source, bytes)
MOVED_PAIR(cuMemcpyDtoD_v2, _ptds, NULL, copied(bytes), (CUdeviceptr target, CUdeviceptr source, size_t bytes), target, source, bytes)
FOREIGN(cuMemcpyDtoDAsync, stream, (CUdeviceptr_v1 target, CUdeviceptr_v1 source, unsigned int bytes, CUstream stream), target, source, bytes,
        stream)
MOVED_PAIR(cuMemcpyDtoDAsync_v2, _ptsz, stream, copied(bytes), (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream), target,
           source, bytes, stream)
FOREIGN(cuMemcpyAtoA, NULL, (CUarray target, unsigned int target_offset, CUarray source, unsigned int source_offset, unsigned int bytes), target,
        target_offset, source, source_offset, bytes)
MOVED_PAIR(cuMemcpyAtoA_v2, _ptds, NULL, copied(bytes), (CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t bytes),
           target, target_offset, source, source_offset, bytes)
FOREIGN(cuMemcpyAtoD, NULL, (CUdeviceptr_v1 target, CUarray source, unsigned int source_offset, unsigned int bytes), target, source, source_offset,
        bytes)
MOVED_PAIR(cuMemcpyAtoD_v2, _ptds, NULL, copied(bytes), (CUdeviceptr target, CUarray source, size_t source_offset, size_t bytes), target, source,
           source_offset, bytes)
FOREIGN(cuMemcpyDtoA, NULL, (CUarray target, unsigned int target_offset, CUdeviceptr_v1 source, unsigned int bytes), target, target_offset, source,
        bytes)
MOVED_PAIR(cuMemcpyDtoA_v2, _ptds, NULL, copied(bytes), (CUarray target, size_t target_offset, CUdeviceptr source, size_t bytes), target,
           target_offset, source, bytes)
MOVED_PAIR(cuMemBatchDecompressAsync, _ptsz, stream, decompressed(count), (CUmemDecompressParams *parameters, size_t count, unsigned int flags,
           size_t *failed, CUstream stream), parameters, count, flags, failed, stream)

/* ---- copies that may be ---- */

EITHER_PAIR(cuMemcpy, _ptds, NULL, is_on_device(target, source), copied(bytes), (CUdeviceptr target, CUdeviceptr source, size_t bytes), target,
            source, bytes)
EITHER_PAIR(cuMemcpyAsync, _ptsz, stream, is_on_device(target, source), copied(bytes), (CUdeviceptr target, CUdeviceptr source, size_t bytes,
            CUstream stream), target, source, bytes, stream)
FOREIGN(cuMemcpy2D, NULL, (const CUDA_MEMCPY2D_v1 *copy), copy)
EITHER_PAIR(cuMemcpy2D_v2, _ptds, NULL, is_2d_on_device(copy), copied(copy->WidthInBytes * copy->Height), (const CUDA_MEMCPY2D *copy), copy)
FOREIGN(cuMemcpy2DAsync, stream, (const CUDA_MEMCPY2D_v1 *copy, CUstream stream), copy, stream)
EITHER_PAIR(cuMemcpy2DAsync_v2, _ptsz, stream, is_2d_on_device(copy), copied(copy->WidthInBytes * copy->Height), (const CUDA_MEMCPY2D *copy,
            CUstream stream), copy, stream)
FOREIGN(cuMemcpy2DUnaligned, NULL, (const CUDA_MEMCPY2D_v1 *copy), copy)
EITHER_PAIR(cuMemcpy2DUnaligned_v2, _ptds, NULL, is_2d_on_device(copy), copied(copy->WidthInBytes * copy->Height), (const CUDA_MEMCPY2D *copy),
            copy)
FOREIGN(cuMemcpy3D, NULL, (const CUDA_MEMCPY3D_v1 *copy), copy)
EITHER_PAIR(cuMemcpy3D_v2, _ptds, NULL, is_3d_on_device(copy), copied(copy->WidthInBytes * copy->Height * copy->Depth), (const CUDA_MEMCPY3D *copy),
            copy)
FOREIGN(cuMemcpy3DAsync, stream, (const CUDA_MEMCPY3D_v1 *copy, CUstream stream), copy, stream)
EITHER_PAIR(cuMemcpy3DAsync_v2, _ptsz, stream, is_3d_on_device(copy), copied(copy->WidthInBytes * copy->Height * copy->Depth), (const CUDA_MEMCPY3D
            *copy, CUstream stream), copy, stream)
EITHER_PAIR(cuMemcpyBatchAsync, _ptsz, stream, is_batch_on_device(targets, sources, sizes, count), copied(sum(sizes, count)), (CUdeviceptr *targets,
            CUdeviceptr *sources, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t attribute_count,
            size_t *failed, CUstream stream), targets, sources, sizes, count, attributes, attribute_indices, attribute_count, failed, stream)
EITHER_PAIR(cuMemcpyBatchAsync_v2, _ptsz, stream, is_batch_on_device(targets, sources, sizes, count), copied(sum(sizes, count)), (CUdeviceptr
            *targets, CUdeviceptr *sources, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *attribute_indices, size_t
            attribute_count, CUstream stream), targets, sources, sizes, count, attributes, attribute_indices, attribute_count, stream)
EITHER_PAIR(cuMemcpyWithAttributesAsync, _ptsz, stream, is_on_device(target, source), copied(size), (CUdeviceptr target, CUdeviceptr source, size_t
            size, CUmemcpyAttributes *attributes, CUstream stream), target, source, size, attributes, stream)
EITHER_PAIR(cuMemcpyPeer, _ptds, NULL, is_on_device(target, source), copied(bytes), (CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
            CUcontext source_context, size_t bytes), target, target_context, source, source_context, bytes)
EITHER_PAIR(cuMemcpyPeerAsync, _ptsz, stream, is_on_device(target, source), copied(bytes), (CUdeviceptr target, CUcontext target_context, CUdeviceptr
            source, CUcontext source_context, size_t bytes, CUstream stream), target, target_context, source, source_context, bytes, stream)

/* ---- copies over the bus and between GPUs ---- */

FOREIGN(cuMemcpyDtoH, NULL, (void *target, CUdeviceptr_v1 source, unsigned int bytes), target, source, bytes)
FOREIGN_PAIR(cuMemcpyDtoH_v2, _ptds, NULL, (void *target, CUdeviceptr source, size_t bytes), target, source, bytes)
FOREIGN(cuMemcpyDtoHAsync, stream, (void *target, CUdeviceptr_v1 source, unsigned int bytes, CUstream stream), target, source, bytes, stream)
FOREIGN_PAIR(cuMemcpyDtoHAsync_v2, _ptsz, stream, (void *target, CUdeviceptr source, size_t bytes, CUstream stream), target, source, bytes, stream)
FOREIGN(cuMemcpyHtoD, NULL, (CUdeviceptr_v1 target, const void *source, unsigned int bytes), target, source, bytes)
FOREIGN_PAIR(cuMemcpyHtoD_v2, _ptds, NULL, (CUdeviceptr target, const void *source, size_t bytes), target, source, bytes)
FOREIGN(cuMemcpyHtoDAsync, stream, (CUdeviceptr_v1 target, const void *source, unsigned int bytes, CUstream stream), target, source, bytes, stream)
FOREIGN_PAIR(cuMemcpyHtoDAsync_v2, _ptsz, stream, (CUdeviceptr target, const void *source, size_t bytes, CUstream stream), target, source, bytes,
             stream)
FOREIGN(cuMemcpyAtoH, NULL, (void *target, CUarray source, unsigned int source_offset, unsigned int bytes), target, source, source_offset, bytes)
FOREIGN_PAIR(cuMemcpyAtoH_v2, _ptds, NULL, (void *target, CUarray source, size_t source_offset, size_t bytes), target, source, source_offset, bytes)
FOREIGN(cuMemcpyAtoHAsync, stream, (void *target, CUarray source, unsigned int source_offset, unsigned int bytes, CUstream stream), target, source,
        source_offset, bytes, stream)
FOREIGN_PAIR(cuMemcpyAtoHAsync_v2, _ptsz, stream, (void *target, CUarray source, size_t source_offset, size_t bytes, CUstream stream), target,
             source, source_offset, bytes, stream)
FOREIGN(cuMemcpyHtoA, NULL, (CUarray target, unsigned int target_offset, const void *source, unsigned int bytes), target, target_offset, source,
        bytes)
FOREIGN_PAIR(cuMemcpyHtoA_v2, _ptds, NULL, (CUarray target, size_t target_offset, const void *source, size_t bytes), target, target_offset, source,
             bytes)
FOREIGN(cuMemcpyHtoAAsync, stream, (CUarray target, unsigned int target_offset, const void *source, unsigned int bytes, CUstream stream), target,
        target_offset, source, bytes, stream)
FOREIGN_PAIR(cuMemcpyHtoAAsync_v2, _ptsz, stream, (CUarray target, size_t target_offset, const void *source, size_t bytes, CUstream stream), target,
             target_offset, source, bytes, stream)
FOREIGN_PAIR(cuMemcpy3DPeer, _ptds, NULL, (const CUDA_MEMCPY3D_PEER *copy), copy)
FOREIGN_PAIR(cuMemcpy3DPeerAsync, _ptsz, stream, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), copy, stream)
FOREIGN_PAIR(cuMemcpy3DBatchAsync, _ptsz, stream, (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, size_t *failed, unsigned long long flags,
             CUstream stream), count, operations, failed, flags, stream)
FOREIGN_PAIR(cuMemcpy3DBatchAsync_v2, _ptsz, stream, (size_t count, CUDA_MEMCPY3D_BATCH_OP *operations, unsigned long long flags, CUstream stream),
             count, operations, flags, stream)
FOREIGN_PAIR(cuMemcpy3DWithAttributesAsync, _ptsz, stream, (CUDA_MEMCPY3D_BATCH_OP *operation, unsigned long long flags, CUstream stream),
             operation, flags, stream)
FOREIGN_PAIR(cuFabricCpyBatchAsync, _ptsz, stream, (size_t count, CUDA_FABRIC_COPY_BATCH_OP *operations, unsigned long long flags, CUstream stream),
             count, operations, flags, stream)
