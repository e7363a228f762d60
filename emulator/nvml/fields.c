/* nvmlDeviceGetFieldValues: the agent asks for a field that only newer drivers have, and goes on without an answer. */
#include "session.h"

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    OPEN(v, device, values);
    if (count < 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)clock_us();
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}
