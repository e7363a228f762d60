/* The modes of a GPU: compute, persistence, MIG, and those that data-centre Linux does not have. */
#include <unistd.h>

#include "../shared/change.h"
#include "getter.h"
#include "setter.h"

nvmlReturn_t begin_set(nvmlDevice_t device, struct view *view, struct gpu_status *draft)
{
    nvmlReturn_t error = view_open(device, view);
    if (error != NVML_SUCCESS)
        return error;
    if (geteuid() != 0 || !change_begin(view->gpu, draft))
        return NVML_ERROR_NO_PERMISSION;
    if (draft->presence == PRESENT)
        return NVML_SUCCESS;
    change_abandon();
    return NVML_ERROR_GPU_IS_LOST;
}

GET(nvmlDeviceGetComputeMode, nvmlComputeMode_t, v.status.compute_mode)
GET(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, v.status.persistence)
GET_PAIR_IF(v.facts->mig_capable, nvmlDeviceGetMigMode, unsigned int, v.status.mig, v.status.mig_pending)
GET(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)
GET(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
GET(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)

/* GeForce of old and Windows. */
GET_PAIR_IF(false, nvmlDeviceGetDriverModel, nvmlDriverModel_t, 0, 0)
GET_PAIR_IF(false, nvmlDeviceGetDriverModel_v2, nvmlDriverModel_t, 0, 0)

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    if ((unsigned)mode >= NVML_COMPUTEMODE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN_SET(device, view, draft);
    draft.compute_mode = mode;
    change_commit(view.gpu, &draft);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    if ((unsigned)mode > NVML_FEATURE_ENABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN_SET(device, view, draft);
    draft.persistence = mode;
    change_commit(view.gpu, &draft);
    return NVML_SUCCESS;
}

/* Takes effect at once on an idle GPU; on a busy one it stays pending and `activation` says why. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    if (mode > NVML_DEVICE_MIG_ENABLE || activation == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    BEGIN_SET(device, view, draft);
    if (!view.facts->mig_capable) {
        change_abandon();
        return NVML_ERROR_NOT_SUPPORTED;
    }
    draft.mig_pending = mode;
    *activation = draft.mig != mode && draft.process_count > 0 ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (*activation == NVML_SUCCESS)
        draft.mig = mode;
    change_commit(view.gpu, &draft);
    return NVML_SUCCESS;
}
