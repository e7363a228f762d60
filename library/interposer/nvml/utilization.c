/*
 * How busy a limited GPU is: as busy as this container keeps its share, 100 % where the share is used up, as memory is shown. NVML answers first, so its
 * errors stay. Nothing measures how busy a container keeps the GPU's memory: that is the whole GPU's figure, but never more than the share's time.
 */
#include "hooks.h"

static unsigned int smaller(unsigned int one, unsigned int other)
{
    return one < other ? one : other;
}

/* VCUDA_NOT_LIMITED where the driver's figure stands. */
static int own_percent(nvmlDevice_t device)
{
    int index = nvml_device_index(device);
    return index == VCUDA_NOT_LIMITED ? VCUDA_NOT_LIMITED : vcuda_utilization(index);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlReturn_t error = NVML(nvmlDeviceGetUtilizationRates, device, utilization);
    int own = error == NVML_SUCCESS ? own_percent(device) : VCUDA_NOT_LIMITED;
    if (own != VCUDA_NOT_LIMITED)
        *utilization = (nvmlUtilization_t){.gpu = (unsigned int)own, .memory = smaller(utilization->memory, (unsigned int)own)};
    return error;
}

/* The same figures in another form; video engine and bus are the whole GPU's. */
nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    nvmlReturn_t error = NVML(nvmlDeviceGetDynamicPstatesInfo, device, info);
    int own = error == NVML_SUCCESS ? own_percent(device) : VCUDA_NOT_LIMITED;
    if (own == VCUDA_NOT_LIMITED)
        return error;
    unsigned int *memory = &info->utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].percentage;
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].percentage = (unsigned int)own;
    *memory = smaller(*memory, (unsigned int)own);
    return error;
}

static bool is_of_utilization(nvmlSamplingType_t type)
{
    return type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;
}

/* Of the container's own past nothing is kept: the newest of the driver's samples stays, with what the container uses now. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen, nvmlValueType_t *value_type,
                                  unsigned int *count, nvmlSample_t *samples)
{
    nvmlReturn_t error = NVML(nvmlDeviceGetSamples, device, type, last_seen, value_type, count, samples);
    bool answered = error == NVML_SUCCESS && is_of_utilization(type) && samples != NULL && *count > 0 && *value_type == NVML_VALUE_TYPE_UNSIGNED_INT;
    int own = answered ? own_percent(device) : VCUDA_NOT_LIMITED;
    if (own == VCUDA_NOT_LIMITED)
        return error;
    unsigned int newest = samples[*count - 1].sampleValue.uiVal;
    samples[0].timeStamp = samples[*count - 1].timeStamp;
    samples[0].sampleValue.uiVal = type == NVML_GPU_UTILIZATION_SAMPLES ? (unsigned int)own : smaller(newest, (unsigned int)own);
    *count = 1;
    return error;
}
