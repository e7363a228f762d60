/* Memory errors: ECC modes and counters, remapped rows. Everything but the counters is that of a healthy GPU. */
#include "../shared/change.h"
#include "getter.h"
#include "setter.h"

enum { CAPABILITY_THAT_REMAPS = 8 }; /* Ampere and later remap rows; earlier ones retire pages */

GET_PAIR_IF(v.facts->ecc, nvmlDeviceGetEccMode, nvmlEnableState_t, v.status.ecc, v.status.ecc_pending)

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *count)
{
    OPEN(v, device, count);
    if ((unsigned)type >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!v.facts->ecc || !v.status.ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = v.status.ecc_errors[counter][type];
    return NVML_SUCCESS;
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
