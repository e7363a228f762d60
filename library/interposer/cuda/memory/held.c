/*
 * See held.h. A process is looked for by its own pid; translation.h says whether a driver can mean another process by that number.
 */
#include "held.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interposer/cuda/hooks.h"
#include "nvml.h"
#include "translation.h"

#define OURS "libnvidia-ml.so.1"
#define DRIVER_ALIAS "libnvidia-ml-real.so.1"

enum { FIRST_ROOM = 64, MOST_ROOM = 4096 };
static const uint64_t soonest_ns = UINT64_C(50000000), latest_ns = UINT64_C(8000000000);

static struct nvml {
    uint32_t tried_by;      /* pid */
    uint64_t again_ns, pause_ns;
    enum pids pids;
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*by_bus_id)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
} nvml;

/* In our directory, by its full path: the search path may name others. */
static void *open_driver(void)
{
    Dl_info self;
    char path[VCUDA_PATH];

    if (dladdr(&nvml, &self) == 0 || self.dli_fname == NULL || strrchr(self.dli_fname, '/') == NULL)
        return NULL;
    int length = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
    if (snprintf(path, sizeof path, "%.*s/" OURS, length, self.dli_fname) >= (int)sizeof path)
        return NULL;
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL) == NULL ? NULL : dlopen(DRIVER_ALIAS, RTLD_LAZY | RTLD_NOLOAD);
}

/* True: it can be asked. */
static bool load(void)
{
    void *driver = open_driver();

    if (driver == NULL)
        return false;
    *(void **)&nvml.init = dlsym(driver, "nvmlInit_v2");
    *(void **)&nvml.by_uuid = dlsym(driver, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml.by_bus_id = dlsym(driver, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml.processes = dlsym(driver, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (nvml.processes == NULL)
        *(void **)&nvml.processes = dlsym(driver, "nvmlDeviceGetComputeRunningProcesses_v2");
    return nvml.init != NULL && nvml.by_uuid != NULL && nvml.by_bus_id != NULL && nvml.processes != NULL && nvml.init() == NVML_SUCCESS;
}

/* A process without descriptors or memory cannot load it now, and can a moment later: tried again, ever more seldom. A child after fork starts again. */
void held_load(void)
{
    uint64_t now = vcuda_now_ns();

    if (nvml.tried_by != (uint32_t)getpid())
        nvml = (struct nvml){.tried_by = (uint32_t)getpid(), .pause_ns = soonest_ns, .pids = translation_known()};
    if (nvml.processes != NULL || nvml.pids == PIDS_OTHERS || now < nvml.again_ns)
        return;
    if (load())
        return;
    nvml.processes = NULL;
    nvml.again_ns = vcuda_now_ns() + nvml.pause_ns;
    nvml.pause_ns = nvml.pause_ns * 2 < latest_ns ? nvml.pause_ns * 2 : latest_ns;
}

static nvmlReturn_t find_device(unsigned index, int device, nvmlDevice_t *found)
{
    const struct limits_device *limits = vcuda_device((int)index);
    char bus_id[32];

    if (limits != NULL && limits->uuid[0] != '\0')
        return nvml.by_uuid(limits->uuid, found);
    if (DRIVER(cuDeviceGetPCIBusId, bus_id, sizeof bus_id, device) != CUDA_SUCCESS)
        return NVML_ERROR_UNKNOWN;
    return nvml.by_bus_id(bus_id, found);
}

static bool lives_here(unsigned pid)
{
    return pid != 0 && pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

/* The process's line; more than one (compute instances) are one process. Others are looked at only while it is not known whom the driver means. */
static enum held own_line(const nvmlProcessInfo_t *list, unsigned count, uint64_t *bytes, bool *has_foreign)
{
    enum held held = HELD_NOTHING;

    *bytes = 0;
    *has_foreign = false;
    for (unsigned i = 0; i < count; i++) {
        *has_foreign = *has_foreign || (nvml.pids == PIDS_UNCERTAIN && !lives_here(list[i].pid));
        if (list[i].pid != (unsigned)getpid())
            continue;
        if (list[i].usedGpuMemory == (unsigned long long)NVML_VALUE_NOT_AVAILABLE)
            return HELD_UNKNOWN;
        *bytes += list[i].usedGpuMemory;
        held = HELD_KNOWN;
    }
    return held == HELD_KNOWN && *bytes == 0 ? HELD_UNKNOWN : held;
}

static enum held judge(const nvmlProcessInfo_t *list, unsigned count, bool there, uint64_t *bytes)
{
    bool has_foreign;
    enum held held = own_line(list, count, bytes, &has_foreign);

    if (nvml.pids == PIDS_UNCERTAIN && held == HELD_KNOWN && there && !has_foreign)
        nvml.pids = PIDS_OURS;
    return nvml.pids == PIDS_OURS ? held : HELD_UNKNOWN;
}

static nvmlReturn_t ask(unsigned index, int device, bool there, uint64_t *bytes, enum held *held)
{
    nvmlDevice_t handle;
    nvmlReturn_t error = find_device(index, device, &handle);
    bool short_of_room = error == NVML_SUCCESS;

    for (unsigned room = FIRST_ROOM; short_of_room && room <= MOST_ROOM; room *= 4) {
        unsigned count = room;
        nvmlProcessInfo_t *list = malloc(room * sizeof *list);
        if (list == NULL)
            return NVML_ERROR_MEMORY;
        error = nvml.processes(handle, &count, list);
        if (error == NVML_SUCCESS)
            *held = judge(list, count, there, bytes);
        free(list);
        short_of_room = error == NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return error;
}

/* A shutdown by somebody else may have closed it for us too: NVML counts them for the process. */
enum held held_ask(unsigned index, int device, bool there, uint64_t *bytes)
{
    enum held held = HELD_UNKNOWN;

    held_load();
    if (nvml.processes == NULL)
        return HELD_UNKNOWN;
    if (ask(index, device, there, bytes, &held) == NVML_ERROR_UNINITIALIZED && nvml.init() == NVML_SUCCESS)
        ask(index, device, there, bytes, &held);
    return held;
}
