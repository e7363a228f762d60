/* Power, energy, temperature, fans: from the profile where it says so, else following the utilisation. */
#include "../shared/change.h"
#include "../shared/derive.h"
#include "getter.h"
#include "setter.h"

enum { VOLTA = 7, FAN_IDLE_PERCENT = 30 };

GET(nvmlDeviceGetPowerUsage, unsigned int, power_mw(v.facts, &v.status))
GET_IF(v.facts->capability_major >= VOLTA, nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj(v.facts, &v.status, clock_us()))
GET(nvmlDeviceGetPowerManagementLimit, unsigned int, v.status.power_limit_w * 1000)
GET(nvmlDeviceGetEnforcedPowerLimit, unsigned int, v.status.power_limit_w * 1000)
GET_PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, v.facts->power_min_w * 1000, v.facts->power_max_w * 1000)
GET(nvmlDeviceGetNumFans, unsigned int, v.facts->fans)

static unsigned fan_percent(const struct view *view)
{
    return FAN_IDLE_PERCENT + gpu_utilisation(&view->status) / 2;
}
GET_IF(v.facts->fans > 0, nvmlDeviceGetFanSpeed, unsigned int, fan_percent(&v))

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int milliwatts)
{
    BEGIN_SET(device, view, draft);
    if (milliwatts < view.facts->power_min_w * 1000 || milliwatts > view.facts->power_max_w * 1000) {
        change_abandon();
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    draft.power_limit_w = milliwatts / 1000;
    change_commit(view.gpu, &draft);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius)
{
    OPEN(v, device, celsius);
    if (sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = temperature_c(&v.status);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    OPEN(v, device, temperature);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    temperature->temperature = (int)temperature_c(&v.status);
    return NVML_SUCCESS;
}
