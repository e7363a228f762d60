/* Clocks, performance states and the PCIe link. A busy GPU runs at its highest clocks, an idle one at its lowest. */
#include "../shared/derive.h"
#include "getter.h"

enum { IDLE_DIVISOR = 7 };

static bool is_busy(const struct view *view)
{
    return gpu_utilisation(&view->status) > 0;
}

static nvmlPstates_t performance_state(const struct view *view)
{
    return is_busy(view) ? NVML_PSTATE_0 : NVML_PSTATE_8;
}

GET(nvmlDeviceGetPerformanceState, nvmlPstates_t, performance_state(&v))
GET(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, v.facts->pcie_generation)
GET(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, v.facts->pcie_width)

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
