/* What exists in the driver and is not emulated, as far as library/ calls or hooks it: multicast and external memory. The rest: unsupported_functions.h. */
#include "entry.h"

ENTRY(cuMulticastCreate)(CUmemGenericAllocationHandle *mc_handle, const CUmulticastObjectProp *prop)
{
    return mc_handle == NULL || prop == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

/* No emulated GPU is in a group: nothing can be bound. */
ENTRY(cuMulticastBindMem)(CUmemGenericAllocationHandle mc_handle, size_t mc_offset, CUmemGenericAllocationHandle mem_handle, size_t
                          mem_offset, size_t size, unsigned long long flags)
{
    (void)mc_handle;
    (void)mc_offset;
    (void)mem_handle;
    (void)mem_offset;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

ENTRY(cuMulticastBindMem_v2)(CUmemGenericAllocationHandle mc_handle, CUdevice device, size_t mc_offset, CUmemGenericAllocationHandle
                             mem_handle, size_t mem_offset, size_t size, unsigned long long flags)
{
    (void)mc_handle;
    (void)device;
    (void)mc_offset;
    (void)mem_handle;
    (void)mem_offset;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

ENTRY(cuMulticastBindAddr)(CUmemGenericAllocationHandle mc_handle, size_t mc_offset, CUdeviceptr pointer, size_t size, unsigned long long
                           flags)
{
    (void)mc_handle;
    (void)mc_offset;
    (void)pointer;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

ENTRY(cuMulticastBindAddr_v2)(CUmemGenericAllocationHandle mc_handle, CUdevice device, size_t mc_offset, CUdeviceptr pointer, size_t size,
                              unsigned long long flags)
{
    (void)mc_handle;
    (void)device;
    (void)mc_offset;
    (void)pointer;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

ENTRY(cuLogicalEndpointBindMem)(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, CUmemGenericAllocationHandle mem_handle,
                                uint64_t mem_offset, uint64_t size, unsigned long long flags)
{
    (void)endpoint;
    (void)device;
    (void)offset;
    (void)mem_handle;
    (void)mem_offset;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
}

ENTRY(cuLogicalEndpointBindAddr)(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *pointer, uint64_t size, unsigned
                                 long long flags)
{
    (void)endpoint;
    (void)device;
    (void)offset;
    (void)pointer;
    (void)size;
    (void)flags;
    return CUDA_ERROR_NOT_SUPPORTED;
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
