/* One NVML function of newer drivers that include/nvml.h leaves out, because the emulated driver does not have it. */
#ifndef VCUDA_NVML_DETAILS_H
#define VCUDA_NVML_DETAILS_H

#include "nvml.h"

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;
typedef nvmlProcessDetailList_v1_t nvmlProcessDetailList_t;

#pragma GCC visibility push(default)
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list);
#pragma GCC visibility pop

#endif
