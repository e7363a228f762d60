/* Memory and utilisation of a GPU, and the ring of samples of both. */
#include <string.h>

#include "../shared/derive.h"
#include "getter.h"

enum { MIB = 1 << 20, SAMPLE_US = 1000000 / 6, SAMPLES = 100 };

/* Version 1 has no word for what is reserved: it counts as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    OPEN(v, device, memory);
    memory->total = v.facts->memory_mib * MIB;
    memory->used = (used_mib(v.facts, &v.status) + v.facts->reserved_mib) * MIB;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    OPEN(v, device, memory);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = v.facts->memory_mib * MIB;
    memory->reserved = v.facts->reserved_mib * MIB;
    memory->used = used_mib(v.facts, &v.status) * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* What CUDA contexts map: two MiB each, on top of the driver's one. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    OPEN(v, device, memory);
    uint64_t used = 1 + 2 * v.status.process_count;
    memory->bar1Total = v.facts->bar1_mib * MIB;
    memory->bar1Used = (used < v.facts->bar1_mib ? used : v.facts->bar1_mib) * MIB;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* With MIG on, the engines belong to its instances and the GPU as a whole has no utilisation. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    OPEN(v, device, utilization);
    if (v.status.mig)
        return NVML_ERROR_NOT_SUPPORTED;
    utilization->gpu = gpu_utilisation(&v.status);
    utilization->memory = memory_utilisation(&v.status);
    return NVML_SUCCESS;
}

GET_PAIR_IF(!v.status.mig, nvmlDeviceGetEncoderUtilization, unsigned int, 0, SAMPLE_US)
GET_PAIR_IF(!v.status.mig, nvmlDeviceGetDecoderUtilization, unsigned int, 0, SAMPLE_US)

static bool sampled_value(const struct view *view, nvmlSamplingType_t type, unsigned *value)
{
    bool busy = gpu_utilisation(&view->status) > 0;
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES:
        *value = power_mw(view->facts, &view->status);
        return true;
    case NVML_GPU_UTILIZATION_SAMPLES:
        *value = gpu_utilisation(&view->status);
        return !view->status.mig;
    case NVML_MEMORY_UTILIZATION_SAMPLES:
        *value = memory_utilisation(&view->status);
        return !view->status.mig;
    case NVML_PROCESSOR_CLK_SAMPLES:
        *value = busy ? view->facts->sm_clock_mhz : view->facts->sm_clock_mhz / 7;
        return true;
    case NVML_MEMORY_CLK_SAMPLES:
        *value = view->facts->memory_clock_mhz;
        return true;
    default:
        return false;
    }
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
    unsigned value;
    OPEN(v, device, count);
    if (value_type == NULL || (samples != NULL && *count == 0) || (unsigned)type >= NVML_SAMPLINGTYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!sampled_value(&v, type, &value))
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    uint64_t newest = clock_us() / SAMPLE_US * SAMPLE_US, fresh = 0;
    if (newest > last_seen)
        fresh = (newest - last_seen + SAMPLE_US - 1) / SAMPLE_US;
    if (fresh > SAMPLES)
        fresh = SAMPLES;
    if (fresh == 0)
        return NVML_ERROR_NOT_FOUND;
    if (samples == NULL) {
        *count = (unsigned)fresh;
        return NVML_SUCCESS;
    }
    *count = fresh < *count ? (unsigned)fresh : *count;
    for (unsigned i = 0; i < *count; i++) {
        memset(&samples[i], 0, sizeof samples[i]);
        samples[i].timeStamp = newest - (*count - 1 - i) * (uint64_t)SAMPLE_US;
        samples[i].sampleValue.uiVal = value;
    }
    return NVML_SUCCESS;
}
