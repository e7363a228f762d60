/* nvmlDeviceGetFieldValues: the numbered questions, each with its own answer and error. */
#include "../shared/derive.h"
#include "session.h"

static void give_int(nvmlFieldValue_t *value, unsigned int answer)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    value->value.uiVal = answer;
}

static void give_long(nvmlFieldValue_t *value, unsigned long long answer)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    value->value.ullVal = answer;
}

/* Per link and direction, by NVML's number of the NVLink version. */
static unsigned link_mbps(const struct gpu_facts *facts)
{
    static const unsigned speeds[] = {0, 20000, 25781, 25781, 26562, 26562, 26562, 53125};
    return facts->link_version < sizeof speeds / sizeof speeds[0] ? speeds[facts->link_version] : 0;
}

static nvmlReturn_t answer_ecc(const struct view *view, nvmlFieldValue_t *value)
{
    const struct gpu_status *status = &view->status;
    if (!view->facts->ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (value->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
        give_int(value, status->ecc);
        break;
    case NVML_FI_DEV_ECC_PENDING:
        give_int(value, status->ecc_pending);
        break;
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
        give_long(value, status->ecc_errors[NVML_VOLATILE_ECC][NVML_MEMORY_ERROR_TYPE_CORRECTED]);
        break;
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
        give_long(value, status->ecc_errors[NVML_VOLATILE_ECC][NVML_MEMORY_ERROR_TYPE_UNCORRECTED]);
        break;
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
        give_long(value, status->ecc_errors[NVML_AGGREGATE_ECC][NVML_MEMORY_ERROR_TYPE_CORRECTED]);
        break;
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
        give_long(value, status->ecc_errors[NVML_AGGREGATE_ECC][NVML_MEMORY_ERROR_TYPE_UNCORRECTED]);
        break;
    default: /* remapped rows */
        give_int(value, 0);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t answer_nvlink(const struct view *view, nvmlFieldValue_t *value)
{
    const struct gpu_facts *facts = view->facts;
    unsigned switched = 0;
    if (facts->link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned i = 0; i < facts->link_count; i++)
        switched += facts->links[i].nvswitch >= 0;
    switch (value->fieldId) {
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        give_int(value, facts->link_count);
        break;
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
        give_int(value, switched);
        break;
    case NVML_FI_DEV_NVLINK_GET_STATE:
        give_int(value, value->scopeId < facts->link_count);
        break;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        give_int(value, facts->link_version);
        break;
    default: /* the speeds */
        give_int(value, link_mbps(facts));
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t answer_power(const struct view *view, nvmlFieldValue_t *value)
{
    const struct gpu_facts *facts = view->facts;
    switch (value->fieldId) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
        give_long(value, energy_mj(facts, &view->status, clock_us()));
        break;
    case NVML_FI_DEV_POWER_MIN_LIMIT:
        give_int(value, facts->power_min_w * 1000);
        break;
    case NVML_FI_DEV_POWER_MAX_LIMIT:
        give_int(value, facts->power_max_w * 1000);
        break;
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
        give_int(value, facts->power_limit_w * 1000);
        break;
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
        give_int(value, view->status.power_limit_w * 1000);
        break;
    default: /* average and instant */
        give_int(value, power_mw(facts, &view->status));
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t answer(const struct view *view, nvmlFieldValue_t *value)
{
    switch (value->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT ... NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
    case NVML_FI_DEV_REMAPPED_COR ... NVML_FI_DEV_REMAPPED_FAILURE:
        return answer_ecc(view, value);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 ... NVML_FI_DEV_NVLINK_LINK_COUNT:
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
    case NVML_FI_DEV_NVLINK_GET_SPEED ... NVML_FI_DEV_NVLINK_GET_VERSION:
        return answer_nvlink(view, value);
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    case NVML_FI_DEV_POWER_AVERAGE ... NVML_FI_DEV_POWER_CURRENT_LIMIT:
        return answer_power(view, value);
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
        give_int(value, 0);
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    OPEN(v, device, values);
    if (count < 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)clock_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = answer(&v, &values[i]);
    }
    return NVML_SUCCESS;
}

/* Nothing that can be cleared is emulated. */
nvmlReturn_t nvmlDeviceClearFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    OPEN(v, device, values);
    if (count < 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
