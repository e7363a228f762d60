/* What exists in the driver and is not emulated, as far as library/ calls or hooks it: multicast and external memory. The rest: unsupported_functions.h. */
#include "entry.h"

ENTRY(cuMulticastCreate)(CUmemGenericAllocationHandle *mc_handle, const CUmulticastObjectProp *prop)
{
    return mc_handle == NULL || prop == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

ENTRY(cuImportExternalMemory)(CUexternalMemory *ext_mem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *mem_handle_desc)
{
    return ext_mem_out == NULL || mem_handle_desc == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

/* None was ever imported. */
ENTRY(cuDestroyExternalMemory)(CUexternalMemory ext_mem)
{
    (void)ext_mem;
    return CUDA_ERROR_INVALID_HANDLE;
}

ENTRY(cuExternalMemoryGetMappedBuffer)(CUdeviceptr *dev_ptr, CUexternalMemory ext_mem, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer_desc)
{
    (void)dev_ptr;
    (void)ext_mem;
    (void)buffer_desc;
    return CUDA_ERROR_INVALID_HANDLE;
}
