/* The library and the system: versions, error texts, names of processes. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "session.h"

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
#define TEXT(name, text)                                                                                                         \
    case name:                                                                                                                   \
        return text;
        TEXT(NVML_SUCCESS, "Success")
        TEXT(NVML_ERROR_UNINITIALIZED, "Uninitialized")
        TEXT(NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument")
        TEXT(NVML_ERROR_NOT_SUPPORTED, "Not Supported")
        TEXT(NVML_ERROR_NO_PERMISSION, "Insufficient Permissions")
        TEXT(NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized")
        TEXT(NVML_ERROR_NOT_FOUND, "Not Found")
        TEXT(NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size")
        TEXT(NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power")
        TEXT(NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded")
        TEXT(NVML_ERROR_TIMEOUT, "Timeout")
        TEXT(NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue")
        TEXT(NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found")
        TEXT(NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found")
        TEXT(NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM")
        TEXT(NVML_ERROR_GPU_IS_LOST, "GPU is lost")
        TEXT(NVML_ERROR_RESET_REQUIRED, "GPU requires restart")
        TEXT(NVML_ERROR_OPERATING_SYSTEM, "The operating system has blocked the request.")
        TEXT(NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch")
        TEXT(NVML_ERROR_IN_USE, "In use by another client")
        TEXT(NVML_ERROR_MEMORY, "Insufficient Memory")
        TEXT(NVML_ERROR_NO_DATA, "No data")
        TEXT(NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "The requested vgpu operation is not available on target device, because ECC is enabled")
        TEXT(NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources")
        TEXT(NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency not supported")
        TEXT(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch")
        TEXT(NVML_ERROR_DEPRECATED, "Deprecated")
        TEXT(NVML_ERROR_NOT_READY, "Not Ready")
        TEXT(NVML_ERROR_GPU_NOT_FOUND, "GPU Not Found")
        TEXT(NVML_ERROR_INVALID_STATE, "Invalid State")
#undef TEXT
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    const struct session *session;
    nvmlReturn_t error = session_current(&session);
    return error != NVML_SUCCESS ? error : give_text(session->machine.state->driver, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    CURRENT(session);
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)session->machine.state->cuda;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* A scripted process has the name that the profile gave it; any other one what /proc says. */
static bool find_name(const struct session *session, unsigned int pid, char *name, size_t size)
{
    struct gpu_status status;
    for (unsigned slot = 0; slot < session->machine.state->gpu_count; slot++) {
        state_read(state_gpu(&session->machine, slot), &status);
        for (uint64_t i = 0; i < status.process_count; i++) {
            if (status.processes[i].pid == pid && status.processes[i].name[0] != '\0') {
                snprintf(name, size, "%s", status.processes[i].name);
                return true;
            }
        }
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, name, size - 1);
    if (fd >= 0)
        close(fd);
    if (got < 0)
        return false;
    name[got] = '\0';
    return true;
}

/* Unlike other texts, a name that is too long is cut. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char found[1024];
    CURRENT(session);
    if (name == NULL || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!find_name(session, pid, found, sizeof found))
        return NVML_ERROR_NOT_FOUND;
    snprintf(name, length, "%s", found);
    return NVML_SUCCESS;
}
