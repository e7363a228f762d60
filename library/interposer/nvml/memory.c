/*
 * What NVML says of a device's memory: the same numbers as cuMemGetInfo (cuda/info.c). NVML answers first, so its errors stay, a wrong version of the
 * struct included.
 */
#include "hooks.h"

struct memory {
    unsigned long long total, free, used;
};

static unsigned long long smaller(unsigned long long one, unsigned long long other)
{
    return one < other ? one : other;
}

/* False: not limited. */
static bool limit(nvmlDevice_t device, struct memory *memory)
{
    int index = nvml_device_index(device);
    const struct limits_device *limits = vcuda_device(index);
    if (vcuda_memory_closed()) {
        *memory = (struct memory){memory->total, 0, memory->total};
        return true;
    }
    if (limits == NULL || limits->memory_bytes == 0)
        return false;
    unsigned long long used = smaller(vcuda_used(index), limits->memory_bytes);
    unsigned long long free = smaller(limits->memory_bytes - used, memory->free);
    unsigned long long total = smaller(limits->memory_bytes, memory->total);
    *memory = (struct memory){total, free, smaller(used, total)};
    return true;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t error = NVML(nvmlDeviceGetMemoryInfo, device, memory);
    if (error != NVML_SUCCESS)
        return error;
    struct memory view = {memory->total, memory->free, memory->used};
    if (limit(device, &view))
        *memory = (nvmlMemory_t){.total = view.total, .free = view.free, .used = view.used};
    return error;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t error = NVML(nvmlDeviceGetMemoryInfo_v2, device, memory);
    if (error != NVML_SUCCESS)
        return error;
    struct memory view = {memory->total, memory->free, memory->used};
    if (limit(device, &view))
        *memory = (nvmlMemory_v2_t){.version = memory->version, .total = view.total, .free = view.free, .used = view.used};
    return error;
}
