/*
 * In front of the emulated driver: what binds memory to a group of GPUs, which the emulator does not have.
 *
 * In: the calls. Out: success, always. Not here: what they do. Every other function is the emulator's, which this library needs by its path.
 */
#include "cuda.h"

#define AGREES(symbol, ...)                                                                                            \
    CUresult symbol(__VA_ARGS__);                                                                                      \
    CUresult symbol(__VA_ARGS__)                                                                                       \
    {                                                                                                                  \
        return CUDA_SUCCESS;                                                                                           \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"
AGREES(cuMulticastBindMem, CUmemGenericAllocationHandle group, size_t at, CUmemGenericAllocationHandle memory, size_t from, size_t size,
       unsigned long long flags)
AGREES(cuMulticastBindMem_v2, CUmemGenericAllocationHandle group, CUdevice device, size_t at, CUmemGenericAllocationHandle memory, size_t from,
       size_t size, unsigned long long flags)
AGREES(cuMulticastBindAddr, CUmemGenericAllocationHandle group, size_t at, CUdeviceptr pointer, size_t size, unsigned long long flags)
AGREES(cuMulticastBindAddr_v2, CUmemGenericAllocationHandle group, CUdevice device, size_t at, CUdeviceptr pointer, size_t size,
       unsigned long long flags)
AGREES(cuLogicalEndpointBindMem, CUlogicalEndpointId endpoint, CUdevice device, uint64_t at, CUmemGenericAllocationHandle memory, uint64_t from,
       uint64_t size, unsigned long long flags)
AGREES(cuLogicalEndpointBindAddr, CUlogicalEndpointId endpoint, CUdevice device, uint64_t at, void *pointer, uint64_t size,
       unsigned long long flags)
