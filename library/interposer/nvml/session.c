/*
 * NVML counts its beginnings and ends for the process as a whole, and ours (cuda/memory/held.c) is one of them. An end of the application's that has no
 * beginning of its own gets the driver's answer to that, and ours stays.
 *
 * In: the application's calls. Out: the driver's answer. A child of fork has its parent's beginnings, as it has the driver's count of them.
 */
#include "hooks.h"

static _Atomic uint32_t begun;      /* by the application, and not ended */

/* Of the dynamic kind, as the other library's (cuda/hooks.h). */
static _Thread_local bool inside __attribute__((tls_model("local-dynamic")));

/* A driver that calls its own exports meets ours; so does our own session's. */
static bool is_drivers(void)
{
    return inside || vcuda_poller_is_here();
}

#define BEGINS(symbol, ...)                                                                                            \
    if (is_drivers())                                                                                                  \
        return NVML(symbol, ##__VA_ARGS__);                                                                            \
    inside = true;                                                                                                     \
    nvmlReturn_t error = NVML(symbol, ##__VA_ARGS__);                                                                  \
    inside = false;                                                                                                    \
    if (error == NVML_SUCCESS)                                                                                         \
        atomic_fetch_add(&begun, 1);                                                                                   \
    return error;

static bool uncount(void)
{
    uint32_t times = atomic_load(&begun);
    while (times != 0 && !atomic_compare_exchange_weak(&begun, &times, times - 1))
        ;
    return times != 0;
}

nvmlReturn_t nvmlInit(void)
{
    BEGINS(nvmlInit)
}

nvmlReturn_t nvmlInit_v2(void)
{
    BEGINS(nvmlInit_v2)
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    BEGINS(nvmlInitWithFlags, flags)
}

nvmlReturn_t nvmlShutdown(void)
{
    if (is_drivers())
        return NVML(nvmlShutdown);
    if (!uncount())
        return NVML_SUCCESS;    /* drivers 470 to 555, whatever the header says */
    nvmlReturn_t error = NVML(nvmlShutdown);
    if (error != NVML_SUCCESS)
        atomic_fetch_add(&begun, 1);
    return error;
}
