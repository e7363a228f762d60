/* Who a GPU is: names, numbers, its place on the bus, its kind. */
#include <stdio.h>
#include <string.h>

#include "getter.h"
#include "pci.h"

GET_TEXT_IF(true, nvmlDeviceGetName, v.facts->name)
GET_TEXT_IF(true, nvmlDeviceGetUUID, v.facts->uuid)
GET_TEXT_IF(v.facts->serial[0] != '\0', nvmlDeviceGetSerial, v.facts->serial)
GET_TEXT_IF(v.facts->part_number[0] != '\0', nvmlDeviceGetBoardPartNumber, v.facts->part_number)
GET_TEXT_IF(v.facts->vbios[0] != '\0', nvmlDeviceGetVbiosVersion, v.facts->vbios)
GET(nvmlDeviceGetBrand, nvmlBrandType_t, v.facts->brand)
GET(nvmlDeviceGetIndex, unsigned int, v.index)
GET(nvmlDeviceGetMinorNumber, unsigned int, v.facts->minor)
GET(nvmlDeviceGetNumGpuCores, unsigned int, v.facts->cores)
GET(nvmlDeviceGetMemoryBusWidth, unsigned int, v.facts->memory_bus_bits)
GET_PAIR(nvmlDeviceGetCudaComputeCapability, int, v.facts->capability_major, v.facts->capability_minor)

void fill_pci(const struct gpu_facts *facts, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->domain = facts->domain;
    pci->bus = facts->bus;
    pci->device = facts->device;
    pci->pciDeviceId = facts->pci_id;
    pci->pciSubSystemId = facts->pci_subsystem_id;
    snprintf(pci->busId, sizeof pci->busId, "%s", facts->bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", facts->domain & 0xffff, facts->bus & 0xff, facts->device & 0x1f);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    OPEN(v, device, pci);
    fill_pci(v.facts, pci);
    return NVML_SUCCESS;
}

/* The two older ones are asked by old clients with a shorter structure: it ends after busIdLegacy..pciSubSystemId. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t full;
    OPEN(v, device, pci);
    fill_pci(v.facts, &full);
    memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t full;
    OPEN(v, device, pci);
    fill_pci(v.facts, &full);
    memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
    return NVML_SUCCESS;
}
