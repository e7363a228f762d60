/* NVML functions that include/nvml.h leaves out, because the emulated driver does not have them: of newer drivers, and of accounting. */
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

typedef struct nvmlAccountingStats_st nvmlAccountingStats_t;            /* neither is looked into, but for the second's first member, the pid */
typedef struct nvmlAccountingStats_v2_st nvmlAccountingStats_v2_t;

enum { NVML_MAX_GPU_UTILIZATIONS = 8, NVML_GPU_UTILIZATION_DOMAIN_GPU = 0, NVML_GPU_UTILIZATION_DOMAIN_FB = 1 };

typedef struct {
    unsigned int flags;
    struct {
        unsigned int bIsPresent, percentage, incThreshold, decThreshold;
    } utilization[NVML_MAX_GPU_UTILIZATIONS];
} nvmlGpuDynamicPstatesInfo_t;

#pragma GCC visibility push(default)
nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list);
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids);
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats);
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats);
#pragma GCC visibility pop

#endif
