/*
 * Prints the binary interface as a header declares it: sizes, offsets and numbers. Compiled once against ours and once against
 * the real nvml.h; the two outputs must be the same.
 */
#include <stddef.h>
#include <stdio.h>

#include <nvml.h>

#define S(type) printf("%s size %zu\n", #type, sizeof(type));
#define F(type, field) printf("%s.%s at %zu size %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field));
#define N(name) printf("%s = %lld\n", #name, (long long)(name));

static void structures(void)
{
    S(nvmlPciInfo_t) F(nvmlPciInfo_t, busIdLegacy) F(nvmlPciInfo_t, domain) F(nvmlPciInfo_t, bus) F(nvmlPciInfo_t, device)
    F(nvmlPciInfo_t, pciDeviceId) F(nvmlPciInfo_t, pciSubSystemId) F(nvmlPciInfo_t, busId)
    S(nvmlUtilization_t) F(nvmlUtilization_t, gpu) F(nvmlUtilization_t, memory)
    S(nvmlMemory_t) F(nvmlMemory_t, total) F(nvmlMemory_t, free) F(nvmlMemory_t, used)
    S(nvmlMemory_v2_t) F(nvmlMemory_v2_t, version) F(nvmlMemory_v2_t, total) F(nvmlMemory_v2_t, reserved) F(nvmlMemory_v2_t, free)
    F(nvmlMemory_v2_t, used)
    S(nvmlBAR1Memory_t) F(nvmlBAR1Memory_t, bar1Total) F(nvmlBAR1Memory_t, bar1Free) F(nvmlBAR1Memory_t, bar1Used)
    S(nvmlProcessInfo_v1_t) F(nvmlProcessInfo_v1_t, pid) F(nvmlProcessInfo_v1_t, usedGpuMemory)
    S(nvmlProcessInfo_v2_t) F(nvmlProcessInfo_v2_t, pid) F(nvmlProcessInfo_v2_t, usedGpuMemory) F(nvmlProcessInfo_v2_t, gpuInstanceId)
    F(nvmlProcessInfo_v2_t, computeInstanceId) S(nvmlProcessInfo_t)
    S(nvmlProcessUtilizationSample_t) F(nvmlProcessUtilizationSample_t, pid) F(nvmlProcessUtilizationSample_t, timeStamp)
    F(nvmlProcessUtilizationSample_t, smUtil) F(nvmlProcessUtilizationSample_t, memUtil) F(nvmlProcessUtilizationSample_t, encUtil)
    F(nvmlProcessUtilizationSample_t, decUtil)
    S(nvmlProcessUtilizationInfo_v1_t) F(nvmlProcessUtilizationInfo_v1_t, timeStamp) F(nvmlProcessUtilizationInfo_v1_t, pid)
    F(nvmlProcessUtilizationInfo_v1_t, smUtil) F(nvmlProcessUtilizationInfo_v1_t, memUtil) F(nvmlProcessUtilizationInfo_v1_t, ofaUtil)
    S(nvmlProcessesUtilizationInfo_v1_t) F(nvmlProcessesUtilizationInfo_v1_t, version)
    F(nvmlProcessesUtilizationInfo_v1_t, processSamplesCount) F(nvmlProcessesUtilizationInfo_v1_t, lastSeenTimeStamp)
    F(nvmlProcessesUtilizationInfo_v1_t, procUtilArray)
    S(nvmlValue_t) S(nvmlSample_t) F(nvmlSample_t, timeStamp) F(nvmlSample_t, sampleValue)
    S(nvmlFieldValue_t) F(nvmlFieldValue_t, fieldId) F(nvmlFieldValue_t, scopeId) F(nvmlFieldValue_t, timestamp)
    F(nvmlFieldValue_t, latencyUsec) F(nvmlFieldValue_t, valueType) F(nvmlFieldValue_t, nvmlReturn) F(nvmlFieldValue_t, value)
    S(nvmlTemperature_t) F(nvmlTemperature_t, version) F(nvmlTemperature_t, sensorType) F(nvmlTemperature_t, temperature)
    S(nvmlEventData_t) F(nvmlEventData_t, device) F(nvmlEventData_t, eventType) F(nvmlEventData_t, eventData)
    F(nvmlEventData_t, gpuInstanceId) F(nvmlEventData_t, computeInstanceId)
    S(nvmlReturn_t) S(nvmlEnableState_t) S(nvmlDevice_t) S(nvmlEventSet_t)
    N(nvmlMemory_v2) N(nvmlProcessesUtilizationInfo_v1) N(nvmlTemperature_v1)
}

static void numbers(void)
{
#include "nvml_names.inc"
}

int main(void)
{
    structures();
    numbers();
    return 0;
}
