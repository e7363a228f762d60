/* Memory errors: ECC modes and counters, retired pages, remapped rows. Everything but the counters is that of a healthy GPU. */
#include "../shared/change.h"
#include "getter.h"
#include "setter.h"

enum { CAPABILITY_THAT_REMAPS = 8 }; /* Ampere and later remap rows; earlier ones retire pages */

GET_PAIR_IF(v.facts->ecc, nvmlDeviceGetEccMode, nvmlEnableState_t, v.status.ecc, v.status.ecc_pending)
GET_IF(v.facts->ecc, nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GET_IF(v.facts->ecc && v.facts->capability_major < CAPABILITY_THAT_REMAPS, nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t,
       NVML_FEATURE_DISABLED)

static nvmlReturn_t read_counter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count)
{
    OPEN(v, device, count);
    if ((unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!v.facts->ecc || !v.status.ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = v.status.ecc_errors[counter][type];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *count)
{
    return read_counter(device, type, counter, count);
}

/* All errors of the emulator are the device memory's. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location, unsigned long long *count)
{
    if ((unsigned)location >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t error = read_counter(device, type, counter, count);
    if (error == NVML_SUCCESS && location != NVML_MEMORY_LOCATION_DEVICE_MEMORY)
        *count = 0;
    return error;
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                            nvmlEccErrorCounts_t *counts)
{
    unsigned long long count;
    nvmlReturn_t error = read_counter(device, type, counter, counts == NULL ? NULL : &count);
    if (error == NVML_SUCCESS)
        *counts = (nvmlEccErrorCounts_t){.deviceMemory = count};
    return error;
}

nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter)
{
    if ((unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN_SET(device, view, draft);
    if (!view.facts->ecc) {
        change_abandon();
        return NVML_ERROR_NOT_SUPPORTED;
    }
    draft.ecc_errors[counter][0] = draft.ecc_errors[counter][1] = 0;
    change_commit(view.gpu, &draft);
    return NVML_SUCCESS;
}

/* As on hardware, pending until the driver is loaded again. */
nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    if ((unsigned)mode > NVML_FEATURE_ENABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN_SET(device, view, draft);
    if (!view.facts->ecc) {
        change_abandon();
        return NVML_ERROR_NOT_SUPPORTED;
    }
    draft.ecc_pending = mode;
    change_commit(view.gpu, &draft);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses)
{
    OPEN(v, device, count);
    if ((unsigned)cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT || (addresses == NULL && *count != 0))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!v.facts->ecc || v.facts->capability_major >= CAPABILITY_THAT_REMAPS)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *times)
{
    if (times == NULL && count != NULL && *count != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetRetiredPages(device, cause, count, addresses);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failed)
{
    OPEN(v, device, corrected);
    if (uncorrected == NULL || pending == NULL || failed == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!v.facts->ecc || v.facts->capability_major < CAPABILITY_THAT_REMAPS)
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}
