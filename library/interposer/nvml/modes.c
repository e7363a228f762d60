/*
 * Switches of a whole GPU, which is not this container's alone: refused with NO_PERMISSION where the GPU is limited, as the driver refuses every caller that is
 * not root. Elsewhere the driver decides.
 */
#include "hooks.h"

static bool is_shared(nvmlDevice_t device)
{
    return nvml_device_index(device) != VCUDA_NOT_LIMITED;
}

#define REFUSED_WHERE_SHARED(symbol, parameters, ...)                                                                  \
    nvmlReturn_t symbol parameters                                                                                     \
    {                                                                                                                  \
        return is_shared(device) ? NVML_ERROR_NO_PERMISSION : NVML(symbol, __VA_ARGS__);                               \
    }

REFUSED_WHERE_SHARED(nvmlDeviceSetComputeMode, (nvmlDevice_t device, nvmlComputeMode_t mode), device, mode)
REFUSED_WHERE_SHARED(nvmlDeviceSetPersistenceMode, (nvmlDevice_t device, nvmlEnableState_t mode), device, mode)
REFUSED_WHERE_SHARED(nvmlDeviceSetMigMode, (nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation), device, mode, activation)
REFUSED_WHERE_SHARED(nvmlDeviceSetEccMode, (nvmlDevice_t device, nvmlEnableState_t mode), device, mode)
REFUSED_WHERE_SHARED(nvmlDeviceClearEccErrorCounts, (nvmlDevice_t device, nvmlEccCounterType_t counter), device, counter)
REFUSED_WHERE_SHARED(nvmlDeviceSetPowerManagementLimit, (nvmlDevice_t device, unsigned int milliwatts), device, milliwatts)
REFUSED_WHERE_SHARED(nvmlDeviceSetPowerManagementLimit_v2, (nvmlDevice_t device, nvmlPowerValue_v2_t *power), device, power)

/* Clocks, and who may change them; what was used, for whom all processes of the GPU are accounted. */
REFUSED_WHERE_SHARED(nvmlDeviceSetApplicationsClocks, (nvmlDevice_t device, unsigned int memory, unsigned int graphics), device, memory, graphics)
REFUSED_WHERE_SHARED(nvmlDeviceResetApplicationsClocks, (nvmlDevice_t device), device)
REFUSED_WHERE_SHARED(nvmlDeviceSetGpuLockedClocks, (nvmlDevice_t device, unsigned int least, unsigned int most), device, least, most)
REFUSED_WHERE_SHARED(nvmlDeviceResetGpuLockedClocks, (nvmlDevice_t device), device)
REFUSED_WHERE_SHARED(nvmlDeviceSetMemoryLockedClocks, (nvmlDevice_t device, unsigned int least, unsigned int most), device, least, most)
REFUSED_WHERE_SHARED(nvmlDeviceResetMemoryLockedClocks, (nvmlDevice_t device), device)
REFUSED_WHERE_SHARED(nvmlDeviceSetAutoBoostedClocksEnabled, (nvmlDevice_t device, nvmlEnableState_t mode), device, mode)
REFUSED_WHERE_SHARED(nvmlDeviceSetDefaultAutoBoostedClocksEnabled, (nvmlDevice_t device, nvmlEnableState_t mode, unsigned int flags), device, mode, flags)
REFUSED_WHERE_SHARED(nvmlDeviceSetAPIRestriction, (nvmlDevice_t device, nvmlRestrictedAPI_t api, nvmlEnableState_t mode), device, api, mode)
REFUSED_WHERE_SHARED(nvmlDeviceSetAccountingMode, (nvmlDevice_t device, nvmlEnableState_t mode), device, mode)
REFUSED_WHERE_SHARED(nvmlDeviceClearAccountingPids, (nvmlDevice_t device), device)
