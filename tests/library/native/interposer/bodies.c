/* What the test driver's functions do, where they do anything: two GPUs of 80 GiB, the first is current for every thread. */
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

enum { GPUS = 2 };
static const size_t gib = (size_t)1 << 30, total = (size_t)80 << 30, taken = (size_t)1 << 30;

void *driver_got;

CUresult body_cuInit(unsigned int flags)
{
    (void)flags;
    cuGetProcAddress("cuMemGetInfo", &driver_got, 3020, 0);
    return CUDA_SUCCESS;
}

CUresult body_cuDriverGetVersion(int *driver_version)
{
    *driver_version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult body_cuDeviceGetCount(int *count)
{
    *count = GPUS;
    return CUDA_SUCCESS;
}

/* GPU-00000000-0000-0000-0000-000000000001 and so on. */
CUresult body_cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    if (device < 0 || device >= GPUS)
        return CUDA_ERROR_INVALID_DEVICE;
    *uuid = (CUuuid){0};
    uuid->bytes[15] = (char)(device + 1);
    return CUDA_SUCCESS;
}

CUresult body_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return body_cuDeviceGetUuid(uuid, device);
}

CUresult body_cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult body_cuMemGetInfo_v2(size_t *free, size_t *all)
{
    if (free != NULL)
        *free = total - taken;
    if (all != NULL)
        *all = total;
    return CUDA_SUCCESS;
}

/* 32 bits hold no more. */
CUresult body_cuMemGetInfo(unsigned int *free, unsigned int *all)
{
    *free = 3 * (unsigned int)gib;
    *all = 4 * (unsigned int)(gib - 1);
    return CUDA_SUCCESS;
}

CUresult body_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = total;
    return CUDA_SUCCESS;
}

CUresult body_cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    (void)device;
    *bytes = 4 * (unsigned int)(gib - 1);
    return CUDA_SUCCESS;
}

/* A driver that asks itself through its exported name; what it heard is the address of the context. */
CUresult body_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    size_t free, all;
    (void)device;
    cuMemGetInfo_v2(&free, &all);
    *context = (CUcontext)all;
    return CUDA_SUCCESS;
}

/* ---- entry points, as the documentation has them ---- */

static bool is_missing(const char *symbol)
{
    size_t length = strlen(symbol);
    for (const char *at = strstr(WITHOUT, symbol); at != NULL; at = strstr(at + 1, symbol)) {
        if (at[length] == ' ')
            return true;
    }
    return false;
}

static const struct row *newest(const char *base, int version, bool per_thread)
{
    const struct row *best = NULL;
    for (unsigned i = 0; i < row_count; i++) {
        const struct row *row = &rows[i];
        bool thread = row->stream[0] == 'T', known = best != NULL && best->stream[0] == 'T';
        if (strcmp(row->base, base) != 0 || row->version > version || row->version > DRIVER_VERSION || (thread && !per_thread) ||
            is_missing(row->symbol))
            continue;
        if (best == NULL || thread > known || (thread == known && row->version > best->version))
            best = row;
    }
    return best;
}

#ifdef NEWER
static CUresult newer_version(void)
{
    return CUDA_SUCCESS;
}
#endif

CUresult body_cuGetProcAddress(const char *symbol, void **entry, int version, uint64_t flags)
{
    if (symbol == NULL || entry == NULL || flags > 2 || version > DRIVER_VERSION)
        return CUDA_ERROR_INVALID_VALUE;
#ifdef NEWER
    if (strcmp(symbol, NEWER) == 0 && (version == DRIVER_VERSION || version < 2000)) {
        *entry = (void *)newer_version;
        return CUDA_SUCCESS;
    }
#endif
    const struct row *row = newest(symbol, version, flags == 2);
#ifdef DISTINCT
    *entry = row == NULL ? NULL : row->other;
#else
    *entry = row == NULL ? NULL : row->entry;
#endif
    return row == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

/* Says what is missing in the status, and succeeds. */
CUresult body_cuGetProcAddress_v2(const char *symbol, void **entry, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)
{
#ifdef CHAINED
    CUresult error = cuGetProcAddress(symbol, entry, version, flags);
#else
    CUresult error = body_cuGetProcAddress(symbol, entry, version, flags);
#endif
    if (error == CUDA_ERROR_INVALID_VALUE)
        return error;
    if (status != NULL)
        *status = error == CUDA_SUCCESS                         ? CU_GET_PROC_ADDRESS_SUCCESS
                  : newest(symbol, DRIVER_VERSION, true) != NULL ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                                 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* ---- memory: numbers, and a place in each call where a thread can be cancelled ---- */

static CUresult give_out(uint64_t *number, size_t bytes)
{
    static _Atomic uint64_t next = UINT64_C(1) << 30;
    *number = atomic_fetch_add(&next, (bytes + 511) / 512 * 512 + 512);
    usleep(20);
    return CUDA_SUCCESS;
}

static CUresult take_back(void)
{
    usleep(20);
    return CUDA_SUCCESS;
}

CUresult body_cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    uint64_t number;
    CUresult error = give_out(&number, bytes);
    *pointer = number;
    return error;
}

CUresult body_cuMemFree_v2(CUdeviceptr pointer)
{
    (void)pointer;
    return take_back();
}

CUresult body_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    uint64_t number;
    (void)prop, (void)flags;
    CUresult error = give_out(&number, size);
    *handle = number;
    return error;
}

CUresult body_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return take_back();
}
