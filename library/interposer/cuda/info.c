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
    if (vcuda_memory_closed() || index == VCUDA_UNNAMED || index == VCUDA_UNKNOWN)
        return 0;
    if (device == NULL || device->memory_bytes == 0)
        return real_free;
    uint64_t used = vcuda_used(index);
    return used >= device->memory_bytes ? 0 : smaller(device->memory_bytes - used, real_free);
}

/* Whether the driver's answer is to be changed, and for which device: the current one, whose account is brought up to date. */
static bool is_answered(CUresult error, int *index)
{
    if (error != CUDA_SUCCESS || hook_nested())
        return false;
    vcuda_helper_poll();
    *index = device_index_current();
    memory_settle(*index);
    return true;
}

/* The oldest versions have numbers of 32 bits; nothing else sets them apart. */
#define MEM_GET_INFO(symbol, number)                                                                                   \
    CUresult symbol(number *free, number *total)                                                                       \
    {                                                                                                                  \
        int index;                                                                                                     \
        CUresult error = DRIVER(symbol, free, total);                                                                  \
        bool answered = is_answered(error, &index);                                                                    \
        if (answered && free != NULL)                                                                                  \
            *free = (number)free_of(index, *free);                                                                     \
        if (answered && total != NULL)                                                                                 \
            *total = (number)total_of(index, *total);                                                                  \
        return error;                                                                                                  \
    }

MEM_GET_INFO(cuMemGetInfo, unsigned int)
MEM_GET_INFO(cuMemGetInfo_v2, size_t)

#define DEVICE_TOTAL_MEM(symbol, number)                                                                               \
    CUresult symbol(number *bytes, CUdevice device)                                                                    \
    {                                                                                                                  \
        CUresult error = DRIVER(symbol, bytes, device);                                                                \
        if (error == CUDA_SUCCESS && bytes != NULL && !hook_nested())                                                  \
            *bytes = (number)total_of(device_index(device), *bytes);                                                   \
        return error;                                                                                                  \
    }

DEVICE_TOTAL_MEM(cuDeviceTotalMem, unsigned int)
DEVICE_TOTAL_MEM(cuDeviceTotalMem_v2, size_t)
