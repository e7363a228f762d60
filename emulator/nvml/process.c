/*
 * Who runs on a GPU and what each takes of it.
 *
 * The three generations of the process list differ in their structure alone, and each kind of process has its own three entry
 * points: one body, nine names. Lists follow NVML's protocol: too small a count comes back as INSUFFICIENT_SIZE with the right one.
 */
#include <string.h>

#include "../shared/derive.h"
#include "delay.h"
#include "session.h"

enum { SAMPLE_US = 1000000 / 6, MIB = 1 << 20, NO_INSTANCE = -1 };

/* The generations agree up to usedGpuMemory; the later ones have the MIG instance behind it. */
static void put_process(void *list, unsigned index, size_t size, const struct gpu_process *process)
{
    nvmlProcessInfo_v2_t info = {process->pid, process->memory_mib * MIB, (unsigned)NO_INSTANCE, (unsigned)NO_INSTANCE};
    memcpy((char *)list + index * size, &info, size);
}

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned int *count, void *list, size_t size, enum process_kind kind)
{
    half_delay();
    OPEN(v, device, count);
    half_delay();
    if (list == NULL && *count != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned found = 0, room = *count;
    for (uint64_t i = 0; i < v.status.process_count; i++) {
        if (v.status.processes[i].kind != kind || v.status.processes[i].pid == 0)
            continue; /* the kernel module hides what the caller's pid namespace does not show */
        if (found < room)
            put_process(list, found, size, &v.status.processes[i]);
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESS_LIST(function, type, kind)                                                                                       \
    nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *list)                                                  \
    {                                                                                                                            \
        return list_processes(device, count, list, sizeof *list, kind);                                                          \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, PROCESS_COMPUTE)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, PROCESS_COMPUTE)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, PROCESS_COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, PROCESS_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, PROCESS_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, PROCESS_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, PROCESS_MPS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, PROCESS_MPS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, PROCESS_MPS)

/* The instant of the latest sample; SAMPLE_US apart, for all callers. */
static uint64_t sample_time(void)
{
    return clock_us() / SAMPLE_US * SAMPLE_US;
}

/* Samples of processes that the caller's pid namespace does not show keep the outer number. */
static uint32_t sample_pid(const struct gpu_process *process)
{
    return process->pid != 0 ? process->pid : process->outer_pid;
}

static bool was_busy(const struct gpu_process *process)
{
    return process->sm > 0 || process->memory_util > 0;
}

/* How many samples are newer than last_seen; only processes that used the GPU have one. */
static unsigned fresh_samples(const struct view *view, uint64_t now, unsigned long long last_seen)
{
    unsigned busy = 0;
    for (uint64_t i = 0; i < view->status.process_count; i++)
        busy += was_busy(&view->status.processes[i]);
    return now > last_seen ? busy : 0;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen)
{
    OPEN(v, device, count);
    if (v.status.mig)
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t now = sample_time();
    unsigned fresh = fresh_samples(&v, now, last_seen), room = samples == NULL ? 0 : *count, put = 0;
    if (fresh == 0)
        return NVML_ERROR_NOT_FOUND;
    *count = fresh;
    if (fresh > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint64_t i = 0; i < v.status.process_count; i++) {
        const struct gpu_process *process = &v.status.processes[i];
        if (was_busy(process))
            samples[put++] = (nvmlProcessUtilizationSample_t){sample_pid(process), now, process->sm, process->memory_util, 0, 0};
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    OPEN(v, device, info);
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t now = sample_time();
    unsigned fresh = fresh_samples(&v, now, info->lastSeenTimeStamp), put = 0;
    unsigned room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    if (fresh == 0)
        return NVML_ERROR_NOT_FOUND;
    info->processSamplesCount = fresh;
    if (fresh > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint64_t i = 0; i < v.status.process_count; i++) {
        const struct gpu_process *process = &v.status.processes[i];
        if (was_busy(process))
            info->procUtilArray[put++] =
                (nvmlProcessUtilizationInfo_v1_t){now, sample_pid(process), process->sm, process->memory_util, 0, 0, 0, 0};
    }
    return NVML_SUCCESS;
}
