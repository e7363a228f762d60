/*
 * In front of the emulated driver, which has no fabric handles: an export by one succeeds, and what it names can be imported while the file FABRIC_HELD is
 * there, which stands for another process that has it. Nothing of it was seen on GPUs behind NVLink.
 */
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

#define SHOWN __attribute__((visibility("default")))

SHOWN CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult (*next)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long);
    *(void **)&next = dlsym(RTLD_NEXT, "cuMemExportToShareableHandle");
    if (type != CU_MEM_HANDLE_TYPE_FABRIC)
        return next(out, handle, type, flags);
    memset(out, 0x5a, 64);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

SHOWN CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *given, CUmemAllocationHandleType type)
{
    CUresult (*next)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
    *(void **)&next = dlsym(RTLD_NEXT, "cuMemImportFromShareableHandle");
    if (type != CU_MEM_HANDLE_TYPE_FABRIC)
        return next(handle, given, type);
    *handle = (CUmemGenericAllocationHandle)1 << 62;
    return access(FABRIC_HELD, F_OK) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SHOWN CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult (*next)(CUmemGenericAllocationHandle);
    *(void **)&next = dlsym(RTLD_NEXT, "cuMemRelease");
    return handle == (CUmemGenericAllocationHandle)1 << 62 ? CUDA_SUCCESS : next(handle);
}
