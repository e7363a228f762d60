/* From an index, a UUID, a serial or a bus id to a handle. A GPU that fell off the bus is found and said to be lost. */
#include <stdlib.h>
#include <string.h>

#include "session.h"

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    CURRENT(session);
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = atomic_load(&session->count);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t give_handle(const struct session *session, unsigned index, nvmlDevice_t *device)
{
    struct gpu_status status;
    unsigned slot = atomic_load(&session->slots[index]);
    state_read(state_gpu(&session->machine, slot), &status);
    if (status.presence != PRESENT)
        return NVML_ERROR_GPU_IS_LOST;
    *device = device_handle(slot);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    CURRENT(session);
    if (device == NULL || index >= atomic_load(&session->count))
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_handle(session, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

typedef bool matcher(const struct gpu_facts *facts, const char *key);

static nvmlReturn_t find(const char *key, matcher *matches, nvmlDevice_t *device)
{
    CURRENT(session);
    if (key == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint32_t count = atomic_load(&session->count);
    for (unsigned index = 0; index < count; index++) {
        if (matches(&state_gpu(&session->machine, atomic_load(&session->slots[index]))->facts, key))
            return give_handle(session, index, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

static bool has_uuid(const struct gpu_facts *facts, const char *uuid)
{
    return strcmp(facts->uuid, uuid) == 0;
}

/* The domain may have any width or be left out, and hex digits any case, as with the real library. */
static bool has_bus_id(const struct gpu_facts *facts, const char *id)
{
    unsigned long part[3] = {0, 0, 0};
    unsigned count = 0;
    char *end = NULL;
    for (const char *at = id; count < 3; at = end + 1) {
        part[count++] = strtoul(at, &end, 16);
        if (end == at || *end != ':')
            break;
    }
    if (count < 2 || (*end != '\0' && strcmp(end, ".0") != 0))
        return false;
    if (count == 2)
        return facts->domain == 0 && facts->bus == part[0] && facts->device == part[1];
    return facts->domain == part[0] && facts->bus == part[1] && facts->device == part[2];
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return find(uuid, has_uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    return find(id, has_bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}
