/* A libnvidia-ml.so.1 that knows one GPU, one function of newer drivers, accounting, utilization, settings, and next to nothing else. */
#include <stdio.h>
#include <string.h>

#include "interposer/nvml/details.h"

static char gpu;
static const nvmlProcessDetail_v1_t listed[] = {{.pid = 3999998, .usedGpuMemory = 1}, {.pid = 3999999, .usedGpuMemory = 2}};
enum { LISTED = sizeof listed / sizeof listed[0], NEWEST = 2 };    /* of the structs that carry a version: no library knows the second */

nvmlReturn_t nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)(void *)(&gpu + index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    (void)device;
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-000000000001");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    unsigned int room = list->numProcArrayEntries;
    (void)device;
    if (list->version >> 24 > NEWEST)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    list->numProcArrayEntries = LISTED;
    if (room < LISTED)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(list->procArray, listed, sizeof listed);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    (void)device;
    info->processSamplesCount = 0;
    return info->version >> 24 > NEWEST ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    unsigned int room = *count;
    (void)device;
    *count = LISTED;
    if (room < LISTED)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < LISTED; i++)
        pids[i] = listed[i].pid;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    (void)device, (void)pid;
    memset(stats, 0x55, 4);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    (void)device;
    if (stats == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset((char *)stats + 4, 0x55, 4);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    (void)device;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < NVML_MAX_GPU_UTILIZATIONS; i++)
        info->utilization[i].percentage = 60 + i;
    return NVML_SUCCESS;
}

#define SUCCEEDS(symbol, ...)                                                                                          \
    nvmlReturn_t symbol(__VA_ARGS__)                                                                                   \
    {                                                                                                                  \
        return NVML_SUCCESS;                                                                                           \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"
SUCCEEDS(nvmlDeviceSetPowerManagementLimit_v2, nvmlDevice_t device, nvmlPowerValue_v2_t *power)
SUCCEEDS(nvmlDeviceSetApplicationsClocks, nvmlDevice_t device, unsigned int memory, unsigned int graphics)
SUCCEEDS(nvmlDeviceResetApplicationsClocks, nvmlDevice_t device)
SUCCEEDS(nvmlDeviceSetGpuLockedClocks, nvmlDevice_t device, unsigned int least, unsigned int most)
SUCCEEDS(nvmlDeviceResetGpuLockedClocks, nvmlDevice_t device)
SUCCEEDS(nvmlDeviceSetMemoryLockedClocks, nvmlDevice_t device, unsigned int least, unsigned int most)
SUCCEEDS(nvmlDeviceResetMemoryLockedClocks, nvmlDevice_t device)
SUCCEEDS(nvmlDeviceSetAutoBoostedClocksEnabled, nvmlDevice_t device, nvmlEnableState_t mode)
SUCCEEDS(nvmlDeviceSetDefaultAutoBoostedClocksEnabled, nvmlDevice_t device, nvmlEnableState_t mode, unsigned int flags)
SUCCEEDS(nvmlDeviceSetAPIRestriction, nvmlDevice_t device, nvmlRestrictedAPI_t api, nvmlEnableState_t mode)
SUCCEEDS(nvmlDeviceSetAccountingMode, nvmlDevice_t device, nvmlEnableState_t mode)
SUCCEEDS(nvmlDeviceClearAccountingPids, nvmlDevice_t device)
