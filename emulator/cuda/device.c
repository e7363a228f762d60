/* Devices: what the profile says about them, under this process's ordinals. Attributes are in attribute.c. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../shared/links.h"
#include "entry.h"
#include "context.h"
#include "session.h"

static const struct gpu_facts *facts_of(CUdevice device)
{
    return driver.gpus[device].facts;
}

ENTRY(cuDeviceGet)(CUdevice *device, int ordinal)
{
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetCount)(int *count)
{
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = driver.count;
    return CUDA_SUCCESS;
}

#define CHECK(device, out)                                                                                                       \
    do {                                                                                                                         \
        if ((out) == NULL)                                                                                                       \
            return CUDA_ERROR_INVALID_VALUE;                                                                                     \
        if (!device_valid(device))                                                                                               \
            return CUDA_ERROR_INVALID_DEVICE;                                                                                    \
    } while (0)

ENTRY(cuDeviceGetName)(char *name, int len, CUdevice device)
{
    CHECK(device, name);
    if (len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "%s", facts_of(device)->name);
    return CUDA_SUCCESS;
}

/* The bytes behind "GPU-", in the order in which they are written. */
ENTRY(cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice device)
{
    CHECK(device, uuid);
    const char *at = facts_of(device)->uuid + strlen("GPU-");
    for (unsigned i = 0; i < sizeof uuid->bytes; i++) {
        char pair[3] = {0};
        for (unsigned digit = 0; digit < 2 && *at != '\0'; at++) {
            if (isxdigit((unsigned char)*at))
                pair[digit++] = *at;
        }
        uuid->bytes[i] = (char)strtoul(pair, NULL, 16);
    }
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetUuid)(CUuuid *uuid, CUdevice device)
{
    return entry_cuDeviceGetUuid_v2(uuid, device);
}

/* CUDA writes four digits of the domain where NVML writes eight. */
static void write_bus_id(const struct gpu_facts *facts, char *out, size_t size)
{
    snprintf(out, size, "%04X:%02X:%02X.0", facts->domain, facts->bus, facts->device);
}

ENTRY(cuDeviceGetPCIBusId)(char *pci_bus_id, int len, CUdevice device)
{
    CHECK(device, pci_bus_id);
    char text[BUS_ID_SIZE];
    write_bus_id(facts_of(device), text, sizeof text);
    if (len <= (int)strlen(text))
        return CUDA_ERROR_INVALID_VALUE;
    strcpy(pci_bus_id, text);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetByPCIBusId)(CUdevice *device, const char *pci_bus_id)
{
    unsigned domain, bus, number, function = 0;
    if (device == NULL || pci_bus_id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pci_bus_id, "%x:%x:%x.%x", &domain, &bus, &number, &function) < 3) {
        domain = 0;
        if (sscanf(pci_bus_id, "%x:%x.%x", &bus, &number, &function) < 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < driver.count; i++) {
        const struct gpu_facts *facts = facts_of(i);
        if (facts->domain == domain && facts->bus == bus && facts->device == number && function == 0) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

ENTRY(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device)
{
    CHECK(device, bytes);
    *bytes = (facts_of(device)->memory_mib - facts_of(device)->reserved_mib) << 20;
    return CUDA_SUCCESS;
}

/* Its number has 32 bits. */
ENTRY(cuDeviceTotalMem)(unsigned int *bytes, CUdevice device)
{
    size_t whole = 0;
    CHECK(device, bytes);
    entry_cuDeviceTotalMem_v2(&whole, device);
    *bytes = whole < UINT32_MAX ? (unsigned)whole : UINT32_MAX;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceComputeCapability)(int *major, int *minor, CUdevice device)
{
    CHECK(device, major);
    CHECK(device, minor);
    *major = (int)facts_of(device)->capability_major;
    *minor = (int)facts_of(device)->capability_minor;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceCanAccessPeer)(int *can_access_peer, CUdevice device, CUdevice peer_dev)
{
    CHECK(device, can_access_peer);
    if (!device_valid(peer_dev))
        return CUDA_ERROR_INVALID_DEVICE;
    *can_access_peer = device != peer_dev;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetP2PAttribute)(int *value, CUdevice_P2PAttribute attrib, CUdevice source, CUdevice target)
{
    CHECK(source, value);
    if (!device_valid(target) || source == target)
        return CUDA_ERROR_INVALID_DEVICE;
    bool linked = count_links(&driver.machine, driver.gpus[source].position, driver.gpus[target].position) > 0;
    switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = linked ? 0 : 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = linked;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
