/*
 * See held.h. A process is looked for by its own pid, and a driver may mean another one by that number: it may report the pids of the host.
 *
 * - In the initial pid namespace the numbers are the host's, and every driver is right.
 * - In another one, as in a container: the open kernel modules translate since 535.113.01 and hide who is not visible; they report the memory by
 *   the wrong namespace (0, or a stranger's) before 565.57.01, and by the right one since. Proprietary modules report the host's. So what
 *   /proc/driver/nvidia/version says decides, where it is there: open and 565.57.01 or newer.
 * - Where it is not (a sandboxed kernel, another driver): a driver that does not translate must list this very process under its number on the host, and
 *   its neighbours under theirs. So while this process holds something there, a list of nothing but processes that live in our namespace,
 *   among them this one, is a translated one; a single stranger in it says that it is not. Once known, that stays.
 * What is not certain is not used: HELD_UNKNOWN.
 */
#include "held.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interposer/cuda/hooks.h"
#include "nvml.h"

#define OURS "libnvidia-ml.so.1"
#define DRIVER_ALIAS "libnvidia-ml-real.so.1"

#define VERSION_FILE "/proc/driver/nvidia/version"

enum { FIRST_ROOM = 64, MOST_ROOM = 4096 };
enum pids { PIDS_UNCERTAIN, PIDS_OURS, PIDS_OTHERS };
static const ino_t initial_namespace = 0xEFFFFFFC;

static struct nvml {
    uint32_t tried_by;      /* pid */
    enum pids pids;
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

static void load(void)
{
    nvmlReturn_t (*init)(void);
    void *driver = open_driver();

    if (driver == NULL)
        return;
    *(void **)&init = dlsym(driver, "nvmlInit_v2");
    *(void **)&nvml.by_uuid = dlsym(driver, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml.by_bus_id = dlsym(driver, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml.processes = dlsym(driver, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (nvml.processes == NULL)
        *(void **)&nvml.processes = dlsym(driver, "nvmlDeviceGetComputeRunningProcesses_v2");
    if (init == NULL || nvml.by_uuid == NULL || nvml.by_bus_id == NULL || init() != NVML_SUCCESS)
        nvml.processes = NULL;
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ...": the first number with a point in it. */
static enum pids by_version(const char *text)
{
    const char *at = strstr(text, "NVRM version:");
    int major = 0, minor = 0, read = 0;

    for (at = at == NULL ? "" : at; *at != '\0' && read != 2; at += strcspn(at, " \t\n"), at += strspn(at, " \t\n"))
        read = sscanf(at, "%d.%d", &major, &minor);
    if (read != 2)
        return PIDS_UNCERTAIN;
    bool open_module = strstr(text, "Open Kernel Module") != NULL;
    return open_module && (major > 565 || (major == 565 && minor >= 57)) ? PIDS_OURS : PIDS_OTHERS;
}

static enum pids whose_pids(void)
{
    char text[512];
    struct stat own;

    if (stat("/proc/self/ns/pid", &own) == 0 && own.st_ino == initial_namespace)
        return PIDS_OURS;
    int file = open(VERSION_FILE, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length < 0)
        return PIDS_UNCERTAIN;
    text[length] = '\0';
    return by_version(text);
}

/* Once a process; a child after fork begins anew. */
void held_load(void)
{
    if (nvml.tried_by == (uint32_t)getpid())
        return;
    nvml = (struct nvml){.tried_by = (uint32_t)getpid(), .pids = whose_pids()};
    if (nvml.pids != PIDS_OTHERS)
        load();
}

static bool find_device(unsigned index, int device, nvmlDevice_t *found)
{
    const struct limits_device *limits = vcuda_device((int)index);
    char bus_id[32];

    if (limits != NULL && limits->uuid[0] != '\0')
        return nvml.by_uuid(limits->uuid, found) == NVML_SUCCESS;
    return DRIVER(cuDeviceGetPCIBusId, bus_id, sizeof bus_id, device) == CUDA_SUCCESS && nvml.by_bus_id(bus_id, found) == NVML_SUCCESS;
}

static bool lives_here(unsigned pid)
{
    return pid != 0 && pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

/* The process's line; more than one (compute instances) are one process. */
static enum held own_line(const nvmlProcessInfo_t *list, unsigned count, uint64_t *bytes, bool *strangers)
{
    enum held held = HELD_NOTHING;

    *bytes = 0;
    *strangers = false;
    for (unsigned i = 0; i < count; i++) {
        *strangers = *strangers || !lives_here(list[i].pid);
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
    bool strangers;
    enum held held = own_line(list, count, bytes, &strangers);

    if (nvml.pids == PIDS_UNCERTAIN && held == HELD_KNOWN && there && !strangers)
        nvml.pids = PIDS_OURS;
    return nvml.pids == PIDS_OURS ? held : HELD_UNKNOWN;
}

enum held held_ask(unsigned index, int device, bool there, uint64_t *bytes)
{
    nvmlDevice_t handle;
    enum held held = HELD_UNKNOWN;

    held_load();
    if (nvml.processes == NULL || !find_device(index, device, &handle))
        return HELD_UNKNOWN;
    for (unsigned room = FIRST_ROOM; room <= MOST_ROOM; room *= 4) {
        unsigned count = room;
        nvmlProcessInfo_t *list = malloc(room * sizeof *list);
        if (list == NULL)
            return HELD_UNKNOWN;
        nvmlReturn_t error = nvml.processes(handle, &count, list);
        if (error == NVML_SUCCESS)
            held = judge(list, count, there, bytes);
        free(list);
        if (error != NVML_ERROR_INSUFFICIENT_SIZE)
            break;
    }
    return held;
}
