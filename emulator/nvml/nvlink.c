/* A GPU's NVLinks, one by one: is it up, what is at its other end. A link whose peer is gone is down. */
#include <stdio.h>
#include <string.h>

#include "pci.h"

/* SUCCESS where the GPU has NVLink at all; `out` is what the caller wants filled. */
static nvmlReturn_t check_link(const struct view *view, unsigned int link)
{
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (view->facts->link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static bool is_active(const struct view *view, unsigned int link)
{
    struct gpu_status peer;
    if (link >= view->facts->link_count)
        return false;
    if (view->facts->links[link].gpu < 0)
        return true;
    state_read(state_gpu(&view->session->machine, (unsigned)view->facts->links[link].gpu), &peer);
    return peer.presence == PRESENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    OPEN(v, device, active);
    nvmlReturn_t error = check_link(&v, link);
    if (error == NVML_SUCCESS)
        *active = is_active(&v, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return error;
}

/* Questions that only a link in use has an answer to. */
static nvmlReturn_t check_active(const struct view *view, unsigned int link)
{
    nvmlReturn_t error = check_link(view, link);
    return error == NVML_SUCCESS && !is_active(view, link) ? NVML_ERROR_INVALID_ARGUMENT : error;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    OPEN(v, device, version);
    nvmlReturn_t error = check_active(&v, link);
    if (error == NVML_SUCCESS)
        *version = v.facts->link_version;
    return error;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    OPEN(v, device, type);
    nvmlReturn_t error = check_active(&v, link);
    if (error == NVML_SUCCESS)
        *type = v.facts->links[link].gpu >= 0 ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return error;
}

static void fill_switch(const char *bus_id, nvmlPciInfo_t *pci)
{
    enum { NVSWITCH = 0x22A310DE };
    memset(pci, 0, sizeof *pci);
    if (sscanf(bus_id, "%8x:%2x:%2x", &pci->domain, &pci->bus, &pci->device) != 3)
        return;
    pci->pciDeviceId = NVSWITCH;
    snprintf(pci->busId, sizeof pci->busId, "%s", bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0x1f);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    OPEN(v, device, pci);
    nvmlReturn_t error = check_active(&v, link);
    if (error != NVML_SUCCESS)
        return error;
    const struct machine *machine = &v.session->machine;
    struct gpu_link to = v.facts->links[link];
    if (to.gpu >= 0)
        fill_pci(&state_gpu(machine, (unsigned)to.gpu)->facts, pci);
    else
        fill_switch(machine->state->switches[to.nvswitch], pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t full;
    nvmlReturn_t error = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci == NULL ? NULL : &full);
    if (error == NVML_SUCCESS)
        memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId)); /* the older structure ends there */
    return error;
}
