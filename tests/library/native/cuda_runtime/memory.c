/* Memory of every kind; see runtime.h. */
#include <string.h>

#include "runtime.h"

FORWARD(cudaMalloc, (void **out, size_t size), DRIVER(cuMemAlloc)((CUdeviceptr *)out, size))
FORWARD(cudaFree, (void *pointer), pointer == NULL ? CUDA_SUCCESS : DRIVER(cuMemFree)((CUdeviceptr)pointer))
FORWARD(cudaMallocAsync, (void **out, size_t size, cudaStream_t stream), DRIVER(cuMemAllocAsync)((CUdeviceptr *)out, size, stream))
FORWARD(cudaFreeAsync, (void *pointer, cudaStream_t stream), DRIVER(cuMemFreeAsync)((CUdeviceptr)pointer, stream))
FORWARD(cudaHostAlloc, (void **out, size_t size, unsigned flags), DRIVER(cuMemHostAlloc)(out, size, flags))
FORWARD(cudaFreeHost, (void *pointer), DRIVER(cuMemFreeHost)(pointer))
FORWARD(cudaHostRegister, (void *pointer, size_t size, unsigned flags), DRIVER(cuMemHostRegister)(pointer, size, flags))
FORWARD(cudaHostUnregister, (void *pointer), DRIVER(cuMemHostUnregister)(pointer))
FORWARD(cudaMemGetInfo, (size_t *left, size_t *total), DRIVER(cuMemGetInfo)(left, total))
FORWARD(cudaMemset, (void *to, int value, size_t size), DRIVER(cuMemsetD8)((CUdeviceptr)to, (unsigned char)value, size))
FORWARD(cudaMemsetAsync, (void *to, int value, size_t size, cudaStream_t stream),
        DRIVER(cuMemsetD8Async)((CUdeviceptr)to, (unsigned char)value, size, stream))

/* Pageable host memory has no address of the driver's, so its direction must be said. */
static CUresult copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyHostToDevice)
        return DRIVER(cuMemcpyHtoD)((CUdeviceptr)to, from, size);
    if (kind == cudaMemcpyDeviceToHost)
        return DRIVER(cuMemcpyDtoH)(to, (CUdeviceptr)from, size);
    return DRIVER(cuMemcpy)((CUdeviceptr)to, (CUdeviceptr)from, size);
}

static CUresult copy_in(cudaStream_t stream, void *to, const void *from, size_t size, enum cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyHostToDevice)
        return DRIVER(cuMemcpyHtoDAsync)((CUdeviceptr)to, from, size, stream);
    if (kind == cudaMemcpyDeviceToHost)
        return DRIVER(cuMemcpyDtoHAsync)(to, (CUdeviceptr)from, size, stream);
    return DRIVER(cuMemcpyAsync)((CUdeviceptr)to, (CUdeviceptr)from, size, stream);
}

FORWARD(cudaMemcpy, (void *to, const void *from, size_t size, enum cudaMemcpyKind kind), copy(to, from, size, kind))
FORWARD(cudaMemcpyAsync, (void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream),
        copy_in(stream, to, from, size, kind))
FORWARD(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * out, int of), DRIVER(cuDeviceGetDefaultMemPool)(out, of))
FORWARD(cudaMemPoolSetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value),
        DRIVER(cuMemPoolSetAttribute)(pool, (CUmemPool_attribute)which, value))
FORWARD(cudaMemPoolGetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value),
        DRIVER(cuMemPoolGetAttribute)(pool, (CUmemPool_attribute)which, value))
FORWARD(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), DRIVER(cuMemPoolTrimTo)(pool, keep))
FORWARD(cudaMemPoolSetAccess, (cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count),
        DRIVER(cuMemPoolSetAccess)(pool, (const CUmemAccessDesc *)list, count))
FORWARD(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * out, void *pointer),
        DRIVER(cuIpcGetMemHandle)((CUipcMemHandle *)out, (CUdeviceptr)pointer))
FORWARD(cudaIpcCloseMemHandle, (void *pointer), DRIVER(cuIpcCloseMemHandle)((CUdeviceptr)pointer))
FORWARD(cudaIpcGetEventHandle, (cudaIpcEventHandle_t * out, cudaEvent_t event),
        DRIVER(cuIpcGetEventHandle)((CUipcEventHandle *)out, event))

EXPORT cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t given, unsigned flags)
{
    CUipcMemHandle handle;
    memcpy(&handle, &given, sizeof handle);
    return RUN(context_ready(), DRIVER(cuIpcOpenMemHandle)((CUdeviceptr *)out, handle, flags));
}

EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t given)
{
    CUipcEventHandle handle;
    memcpy(&handle, &given, sizeof handle);
    return RUN(context_ready(), DRIVER(cuIpcOpenEventHandle)(out, handle));
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    unsigned kind = 0;
    CUresult error = context_ready();
    memset(out, 0, sizeof *out);
    if (error != CUDA_SUCCESS)
        return answered(error);
    if (DRIVER(cuPointerGetAttribute)(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pointer) != CUDA_SUCCESS) {
        out->type = cudaMemoryTypeUnregistered;
        out->device = cudaInvalidDeviceId;
        out->hostPointer = (void *)pointer;
        return cudaSuccess;
    }
    out->type = kind == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    out->device = current_device();
    out->devicePointer = (void *)pointer;
    return cudaSuccess;
}
