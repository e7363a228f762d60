/*
 * Who runs on a limited GPU: this container's processes alone, with what our ledger says they hold, and how busy they keep it, as the driver says; also where
 * an administrator has switched accounting on, which keeps processes that have ended: those are nobody's any more and are left out.
 *
 * A driver names processes by the pids of our own namespace (open kernel modules since 535.113) or of the host. Ours are those with a slot in
 * the region under that pid, and those of the agent's list of host pids (pids.config), whose memory only the driver can tell.
 * The protocol is the driver's: a list that is too short gets INSUFFICIENT_SIZE and the number of entries, of what is left after filtering.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hooks.h"

enum { MAX_HOST_PIDS = 1024, FIRST_CAPACITY = 64, ATTEMPTS = 8 };

/* Every generation of an entry of a list begins so. Samples of utilization have a pid only, somewhere. */
struct entry {
    unsigned int pid;
    unsigned long long used;
};
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == sizeof(struct entry), "the oldest generation has nothing more");
_Static_assert(offsetof(nvmlProcessInfo_v1_t, usedGpuMemory) == offsetof(struct entry, used), "layout");
_Static_assert(offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) == offsetof(struct entry, used), "layout");
_Static_assert(offsetof(nvmlProcessDetail_v1_t, usedGpuMemory) == offsetof(struct entry, used), "layout");

struct host_pids {
    size_t count;
    int32_t pids[MAX_HOST_PIDS];
};

struct list {
    nvmlDevice_t device;
    size_t entry_size, pid_at;
    bool memory;                        /* an entry is a struct entry */
    bool samples;                       /* none at all is NOT_FOUND, and to ask for their number needs no count */
    nvmlReturn_t (*ask)(nvmlDevice_t device, unsigned int *count, void *entries, const void *extra);
    const void *extra;
};

static void read_host_pids(struct host_pids *host)
{
    char path[VCUDA_PATH];
    int file = vcuda_path(path, "pids.config") ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    ssize_t length = file < 0 ? -1 : read(file, host->pids, sizeof host->pids);
    host->count = length < 0 ? 0 : (size_t)length / sizeof host->pids[0];
    if (file >= 0)
        close(file);
}

static bool is_listed(const struct host_pids *host, unsigned int pid)
{
    for (size_t i = 0; i < host->count; i++) {
        if ((unsigned int)host->pids[i] == pid)
            return true;
    }
    return false;
}

/* Fills in what a process of ours holds; false: it is not ours. */
static bool keep(const struct list *list, char *entry, int index, const struct host_pids *host)
{
    unsigned int pid;
    uint64_t bytes;
    memcpy(&pid, entry + list->pid_at, sizeof pid);
    if (!vcuda_used_by(pid, index, &bytes))
        return is_listed(host, pid);
    if (list->memory)
        memcpy(entry + offsetof(struct entry, used), &(unsigned long long){bytes}, sizeof(unsigned long long));
    return true;
}

static unsigned int filter(const struct list *list, char *entries, unsigned int count, int index)
{
    struct host_pids host;
    size_t size = list->entry_size;
    unsigned int kept = 0;
    read_host_pids(&host);
    for (unsigned int i = 0; i < count; i++) {
        if (keep(list, entries + i * size, index, &host))
            memmove(entries + kept++ * size, entries + i * size, size);
    }
    return kept;
}

/* All of the driver's entries, in memory that the caller frees; processes may appear between two questions, so the number of tries is bounded. */
static nvmlReturn_t ask_all(const struct list *list, char **entries, unsigned int *count)
{
    nvmlReturn_t error = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned int capacity = FIRST_CAPACITY;
    *entries = NULL;
    for (int attempt = 0; error == NVML_ERROR_INSUFFICIENT_SIZE && attempt < ATTEMPTS; attempt++, capacity *= 2) {
        free(*entries);
        *entries = calloc(capacity, list->entry_size);
        if (*entries == NULL)
            return NVML_ERROR_MEMORY;
        *count = capacity;
        error = list->ask(list->device, count, *entries, list->extra);
        capacity = *count > capacity ? *count : capacity;
    }
    return error;
}

static nvmlReturn_t answer(const struct list *list, int index, unsigned int *count, void *out)
{
    char *entries;
    unsigned int found, room = out == NULL ? 0 : *count;
    nvmlReturn_t error = ask_all(list, &entries, &found);
    if (error == NVML_SUCCESS) {
        *count = filter(list, entries, found, index);
        if (list->samples && *count == 0)
            error = NVML_ERROR_NOT_FOUND;
        else if (*count > room)
            error = NVML_ERROR_INSUFFICIENT_SIZE;
        else
            memcpy(out == NULL ? entries : out, entries, *count * list->entry_size);
    }
    free(entries);
    return error;
}

/* What is malformed, or asked of a GPU that is not limited, is the driver's to answer. */
static nvmlReturn_t running(const struct list *list, unsigned int *count, void *out)
{
    bool asked_well = count != NULL && (out != NULL || *count == 0 || list->samples);
    int index = asked_well ? nvml_device_index(list->device) : VCUDA_NOT_LIMITED;
    return index == VCUDA_NOT_LIMITED ? list->ask(list->device, count, out, list->extra) : answer(list, index, count, out);
}

#define RUNNING(symbol, type)                                                                                          \
    static nvmlReturn_t ask_##symbol(nvmlDevice_t device, unsigned int *count, void *entries, const void *extra)       \
    {                                                                                                                  \
        (void)extra;                                                                                                   \
        return NVML(symbol, device, count, entries);                                                                   \
    }                                                                                                                  \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *entries)                                       \
    {                                                                                                                  \
        return running(&(struct list){device, sizeof *entries, 0, true, false, ask_##symbol, NULL}, count, entries);         \
    }

RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* A struct of a version that is newer than this library has another layout: a program that is told so asks again with the older one. */
static bool is_unknown(nvmlDevice_t device, unsigned int version, unsigned int known)
{
    return version != known && nvml_device_index(device) != VCUDA_NOT_LIMITED;
}

/* The same in a struct that carries its version and which of the three lists is meant. */
static nvmlReturn_t ask_details(nvmlDevice_t device, unsigned int *count, void *entries, const void *extra)
{
    nvmlProcessDetailList_t list = *(const nvmlProcessDetailList_t *)extra;
    list.numProcArrayEntries = *count;
    list.procArray = entries;
    nvmlReturn_t error = NVML(nvmlDeviceGetRunningProcessDetailList, device, &list);
    *count = list.numProcArrayEntries;
    return error;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    if (list == NULL)
        return NVML(nvmlDeviceGetRunningProcessDetailList, device, list);
    if (is_unknown(device, list->version, nvmlProcessDetailList_v1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct list question = {device, sizeof *list->procArray, 0, true, false, ask_details, list};
    return running(&question, &list->numProcArrayEntries, list->procArray);
}

/* ---- how busy they keep it ---- */

static nvmlReturn_t ask_samples(nvmlDevice_t device, unsigned int *count, void *entries, const void *extra)
{
    return NVML(nvmlDeviceGetProcessUtilization, device, entries, count, *(const unsigned long long *)extra);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,
                                             unsigned long long last_seen)
{
    struct list question = {device, sizeof *samples, offsetof(nvmlProcessUtilizationSample_t, pid), false, true, ask_samples, &last_seen};
    return running(&question, count, samples);
}

static nvmlReturn_t ask_infos(nvmlDevice_t device, unsigned int *count, void *entries, const void *extra)
{
    nvmlProcessesUtilizationInfo_t info = *(const nvmlProcessesUtilizationInfo_t *)extra;
    info.processSamplesCount = *count;
    info.procUtilArray = entries;
    nvmlReturn_t error = NVML(nvmlDeviceGetProcessesUtilizationInfo, device, &info);
    *count = info.processSamplesCount;
    return error;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    if (info == NULL)
        return NVML(nvmlDeviceGetProcessesUtilizationInfo, device, info);
    if (is_unknown(device, info->version, nvmlProcessesUtilizationInfo_v1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct list question = {device, sizeof *info->procUtilArray, offsetof(nvmlProcessUtilizationInfo_v1_t, pid), false, true, ask_infos, info};
    return running(&question, &info->processSamplesCount, info->procUtilArray);
}

/* ---- accounting ---- */

static nvmlReturn_t ask_accounted(nvmlDevice_t device, unsigned int *count, void *entries, const void *extra)
{
    (void)extra;
    return NVML(nvmlDeviceGetAccountingPids, device, count, entries);
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    return running(&(struct list){device, sizeof *pids, 0, false, false, ask_accounted, NULL}, count, pids);
}

static bool is_foreign(nvmlDevice_t device, unsigned int pid)
{
    struct list question = {.device = device};
    struct host_pids host;
    int index = nvml_device_index(device);
    if (index == VCUDA_NOT_LIMITED)
        return false;
    read_host_pids(&host);
    return !keep(&question, (char *)&pid, index, &host);
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    return is_foreign(device, pid) ? NVML_ERROR_NOT_FOUND : NVML(nvmlDeviceGetAccountingStats, device, pid, stats);
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    bool foreign = stats != NULL && is_foreign(device, *(const unsigned int *)stats);
    return foreign ? NVML_ERROR_NOT_FOUND : NVML(nvmlDeviceGetAccountingStats_v2, device, stats);
}
