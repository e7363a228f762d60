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
GET(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
GET(nvmlDeviceGetIrqNum, unsigned int, 100 + v.slot)
GET_PAIR(nvmlDeviceGetCudaComputeCapability, int, v.facts->capability_major, v.facts->capability_minor)
/* Modules of a baseboard are numbered from 1; a card in a slot is none. */
GET_IF(v.facts->link_count > 0 && v.facts->links[0].nvswitch >= 0, nvmlDeviceGetModuleId, unsigned int, v.slot % 8 + 1)

static nvmlDeviceArchitecture_t architecture(const struct gpu_facts *facts)
{
    switch (facts->capability_major) {
    case 5:
        return NVML_DEVICE_ARCH_MAXWELL;
    case 6:
        return NVML_DEVICE_ARCH_PASCAL;
    case 7:
        return facts->capability_minor < 5 ? NVML_DEVICE_ARCH_VOLTA : NVML_DEVICE_ARCH_TURING;
    case 8:
        return facts->capability_minor < 9 ? NVML_DEVICE_ARCH_AMPERE : NVML_DEVICE_ARCH_ADA;
    case 9:
        return NVML_DEVICE_ARCH_HOPPER;
    case 10:
    case 12:
        return NVML_DEVICE_ARCH_BLACKWELL;
    default:
        return NVML_DEVICE_ARCH_UNKNOWN;
    }
}
GET(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture(v.facts))

/* The first GPU of the board that `slot` sits on; `others` counts its neighbours there. */
static unsigned board_of(const struct session *session, unsigned slot, unsigned *others)
{
    const struct gpu_facts *facts = &state_gpu(&session->machine, slot)->facts;
    unsigned first = slot;
    *others = 0;
    for (unsigned other = 0; other < session->machine.state->gpu_count; other++) {
        if (other == slot || facts->level[other] != NVML_TOPOLOGY_INTERNAL)
            continue;
        first = other < first ? other : first;
        ++*others;
    }
    return first;
}

static unsigned board_id(const struct view *view)
{
    unsigned others;
    const struct gpu_facts *first = &state_gpu(&view->session->machine, board_of(view->session, view->slot, &others))->facts;
    return first->domain << 16 | first->bus << 8 | first->device;
}
GET(nvmlDeviceGetBoardId, unsigned int, board_id(&v))

static unsigned is_multi(const struct view *view)
{
    unsigned others;
    board_of(view->session, view->slot, &others);
    return others > 0;
}
GET(nvmlDeviceGetMultiGpuBoard, unsigned int, is_multi(&v))

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same)
{
    OPEN(first, one, same);
    OPEN(second, other, same);
    *same = first.facts->level[second.slot] == NVML_TOPOLOGY_INTERNAL;
    return NVML_SUCCESS;
}

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

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    enum { DISPLAY_CONTROLLER = 3, CONTROLLER_3D = 2 };
    OPEN(v, device, pci);
    if (pci->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    pci->domain = v.facts->domain;
    pci->bus = v.facts->bus;
    pci->device = v.facts->device;
    pci->pciDeviceId = v.facts->pci_id;
    pci->pciSubSystemId = v.facts->pci_subsystem_id;
    pci->baseClass = DISPLAY_CONTROLLER;
    pci->subClass = CONTROLLER_3D;
    snprintf(pci->busId, sizeof pci->busId, "%s", v.facts->bus_id);
    return NVML_SUCCESS;
}
