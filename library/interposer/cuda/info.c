/*
 * What a program hears about a device's memory: total = min(limit, real), free = min(limit - used, real free), never below zero. NVML's view
 * (nvml/memory.c) comes from the same numbers. The driver answers first, its errors and NULL arguments stay as they are.
 */
#include "hooks.h"
#include "memory/memory.h"

static uint64_t smaller(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t total_of(int index, uint64_t real_total)
{
    const struct limits_device *device = vcuda_device(index);
    return device == NULL || device->memory_bytes == 0 ? real_total : smaller(device->memory_bytes, real_total);
}

static uint64_t free_of(int index, uint64_t real_free)
{
    const struct limits_device *device = vcuda_device(index);
    if (vcuda_memory_closed())
        return 0;
    if (device == NULL || device->memory_bytes == 0)
        return real_free;
    uint64_t used = vcuda_used(index);
    return used >= device->memory_bytes ? 0 : smaller(device->memory_bytes - used, real_free);
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    CUresult error = DRIVER(cuMemGetInfo, free, total);
    if (error != CUDA_SUCCESS || hook_nested())
        return error;
    vcuda_helper_poll();
    memory_settle();
    int index = device_index_current();
    if (free != NULL)
        *free = (unsigned int)free_of(index, *free);
    if (total != NULL)
        *total = (unsigned int)total_of(index, *total);
    return error;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult error = DRIVER(cuMemGetInfo_v2, free, total);
    if (error != CUDA_SUCCESS || hook_nested())
        return error;
    vcuda_helper_poll();
    memory_settle();
    int index = device_index_current();
    if (free != NULL)
        *free = free_of(index, *free);
    if (total != NULL)
        *total = total_of(index, *total);
    return error;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    CUresult error = DRIVER(cuDeviceTotalMem, bytes, device);
    if (error == CUDA_SUCCESS && bytes != NULL && !hook_nested())
        *bytes = (unsigned int)total_of(device_index(device), *bytes);
    return error;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult error = DRIVER(cuDeviceTotalMem_v2, bytes, device);
    if (error == CUDA_SUCCESS && bytes != NULL && !hook_nested())
        *bytes = total_of(device_index(device), *bytes);
    return error;
}
