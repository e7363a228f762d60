/* Clocks, performance states and the PCIe link. A busy GPU runs at its highest clocks, an idle one at its lowest. */
#include "../shared/derive.h"
#include "getter.h"

enum { IDLE_DIVISOR = 7, CLOCK_STEPS = 4 };

static bool is_busy(const struct view *view)
{
    return gpu_utilisation(&view->status) > 0;
}

static nvmlPstates_t performance_state(const struct view *view)
{
    return is_busy(view) ? NVML_PSTATE_0 : NVML_PSTATE_8;
}

static unsigned long long reasons(const struct view *view)
{
    return is_busy(view) ? nvmlClocksThrottleReasonNone : nvmlClocksThrottleReasonGpuIdle;
}

enum { ALL_REASONS = 0x1ff };

GET(nvmlDeviceGetPerformanceState, nvmlPstates_t, performance_state(&v))
GET(nvmlDeviceGetPowerState, nvmlPstates_t, performance_state(&v))
GET(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons(&v))
GET(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons(&v))
GET(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, ALL_REASONS)
GET(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, ALL_REASONS)
GET(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, v.facts->pcie_generation)
GET(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, v.facts->pcie_generation)
GET(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, is_busy(&v) ? v.facts->pcie_generation : 1)
GET(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, v.facts->pcie_width)
GET(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, v.facts->pcie_width)
GET(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *kib)
{
    OPEN(v, device, kib);
    if ((unsigned)counter >= NVML_PCIE_UTIL_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *kib = gpu_utilisation(&v.status) * 1024;
    return NVML_SUCCESS;
}

static unsigned highest(const struct view *view, nvmlClockType_t type)
{
    return type == NVML_CLOCK_MEM ? view->facts->memory_clock_mhz : view->facts->sm_clock_mhz;
}

/* Memory of data-centre GPUs keeps its clock; the cores do not. */
static unsigned actual(const struct view *view, nvmlClockType_t type)
{
    unsigned most = highest(view, type);
    return type == NVML_CLOCK_MEM || is_busy(view) ? most : most / IDLE_DIVISOR;
}

#define CLOCK(function, value)                                                                                                   \
    nvmlReturn_t function(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz)                                          \
    {                                                                                                                            \
        OPEN(v, device, mhz);                                                                                                    \
        if ((unsigned)type >= NVML_CLOCK_COUNT)                                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                                  \
        *mhz = value(&v, type);                                                                                                  \
        return NVML_SUCCESS;                                                                                                     \
    }

CLOCK(nvmlDeviceGetClockInfo, actual)
CLOCK(nvmlDeviceGetMaxClockInfo, highest)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, highest)
CLOCK(nvmlDeviceGetApplicationsClock, highest)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, highest)

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *mhz)
{
    if ((unsigned)id >= NVML_CLOCK_ID_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    return id == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, mhz) : nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

static nvmlReturn_t give_clocks(unsigned most, unsigned steps, unsigned int *count, unsigned int *mhz)
{
    unsigned room = *count;
    *count = steps;
    if (mhz == NULL || room < steps)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < steps; i++)
        mhz[i] = most - i * (most / (steps + 1));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *mhz)
{
    OPEN(v, device, count);
    return give_clocks(v.facts->memory_clock_mhz, 1, count, mhz);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int *count, unsigned int *mhz)
{
    OPEN(v, device, count);
    if (memory_mhz != v.facts->memory_clock_mhz)
        return NVML_ERROR_NOT_FOUND;
    return give_clocks(v.facts->sm_clock_mhz, CLOCK_STEPS, count, mhz);
}
