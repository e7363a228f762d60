/*
 * The driver's start and its entry points. Each of these may be a program's first call, in any order; setting up is cheap on repeat.
 *
 * cuGetProcAddress asks the driver first and bends only what it answered (route.c); what the driver refuses, or a question with NULL in it, stays as
 * the driver answers it. It does so for every caller, in the middle of a call of the driver too: what cuInit loads (CUDA_INJECTION64_PATH) keeps
 * the pointers that it gets there.
 */
#include <string.h>

#include "hooks.h"
#include "memory/memory.h"
#include "route.h"

enum { SECOND_INTERFACE = 12000 };  /* the version from which "cuGetProcAddress" is the function with five arguments */

CUresult cuInit(unsigned int flags)
{
    if (hook_nested())
        return real.cuInit(flags);
    vcuda_attach();
    memory_start();
    return DRIVER(cuInit, flags);
}

CUresult cuDriverGetVersion(int *driver_version)
{
    if (hook_nested())
        return real.cuDriverGetVersion(driver_version);
    vcuda_attach();
    return DRIVER(cuDriverGetVersion, driver_version);
}

/* A driver newer than we are may have a version of a hooked function that we do not know: the program gets it, and it is not limited. */
static void tell_unknown(const char *symbol, int version)
{
    struct region *region = vcuda_region();
    if (region != NULL)
        atomic_fetch_add(&region->unknown_functions, 1);
    if (vcuda_limits()->device_count != 0)
        vcuda_warn(TOPIC_DRIVER, "the driver's %s for CUDA %d.%d is newer than vcuda's library: its calls are not limited", symbol, version / 1000,
                   version % 1000 / 10);
}

static void *bend(const char *symbol, void *entry, int version)
{
    if (strcmp(symbol, "cuGetProcAddress") == 0)
        return version >= SECOND_INTERFACE && HAS(cuGetProcAddress_v2) ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    if (route_is_unknown(symbol, entry, version))
        tell_unknown(symbol, version);
    return route(entry);
}

CUresult cuGetProcAddress(const char *symbol, void **entry, int version, uint64_t flags)
{
    CUresult error = DRIVER(cuGetProcAddress, symbol, entry, version, flags);
    if (!route_is_asking() && error == CUDA_SUCCESS && symbol != NULL && entry != NULL && *entry != NULL)
        *entry = bend(symbol, *entry, version);
    return error;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **entry, int version, uint64_t flags, CUdriverProcAddressQueryResult *symbol_status)
{
    CUresult error = DRIVER(cuGetProcAddress_v2, symbol, entry, version, flags, symbol_status);
    if (!route_is_asking() && error == CUDA_SUCCESS && symbol != NULL && entry != NULL && *entry != NULL)
        *entry = bend(symbol, *entry, version);
    return error;
}
