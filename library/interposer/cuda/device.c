/*
 * Which limits a device has: by its UUID, never by its ordinal, which CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER permute.
 *
 * In: the driver's UUIDs. Out: positions in the limits. Kept per ordinal; positions are final, only "unnamed" is asked again when the limits change.
 * How many devices there are is kept too: for a process the driver never changes it once it has answered.
 * While the driver does not answer no memory is given out, and the time is free.
 */
#include <stdio.h>

#include "hooks.h"

enum { MAX_ORDINALS = 256, UUID_TEXT = 48, UNKNOWN = 0, UNNAMED = 1, FIRST = 2 };

static _Atomic int devices;                         /* 0: not known */
static _Atomic unsigned char kept[MAX_ORDINALS];    /* UNKNOWN, UNNAMED, or FIRST + the index */

static void write_uuid(const CUuuid *uuid, char text[static UUID_TEXT])
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(text, UUID_TEXT, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4],
             b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static void ask_again(const struct limits_view *view)
{
    (void)view;
    for (int i = 0; i < MAX_ORDINALS; i++) {
        unsigned char unnamed = UNNAMED;
        atomic_compare_exchange_strong(&kept[i], &unnamed, UNKNOWN);
    }
}

/* The call that is about to be made fails with the same error. */
static bool is_the_programs(CUresult error)
{
    return error == CUDA_ERROR_NOT_INITIALIZED || error == CUDA_ERROR_DEINITIALIZED || error == CUDA_ERROR_INVALID_DEVICE ||
           error == CUDA_ERROR_INVALID_CONTEXT || error == CUDA_ERROR_NOT_FOUND;
}

/* Asks the driver; what it does not answer is not kept. */
static int find(CUdevice device, bool *answered)
{
    CUuuid uuid;
    char text[UUID_TEXT];
    CUresult error = HAS(cuDeviceGetUuid_v2) ? DRIVER(cuDeviceGetUuid_v2, &uuid, device) : DRIVER(cuDeviceGetUuid, &uuid, device);
    *answered = error == CUDA_SUCCESS;
    if (!*answered)
        return is_the_programs(error) ? VCUDA_NOT_LIMITED : VCUDA_UNKNOWN;
    write_uuid(&uuid, text);
    return vcuda_index_of(text);
}

int device_index(CUdevice device)
{
    if (device < 0 || device >= MAX_ORDINALS || vcuda_limits()->device_count == 0)
        return VCUDA_NOT_LIMITED;
    unsigned char known = atomic_load_explicit(&kept[device], memory_order_relaxed);
    if (known == UNKNOWN) {
        bool answered;
        vcuda_on_limits_change(ask_again);
        int index = find(device, &answered);
        if (answered)
            atomic_store(&kept[device], (unsigned char)(index == VCUDA_UNNAMED ? UNNAMED : FIRST + index));
        return index;
    }
    return known == UNNAMED ? VCUDA_UNNAMED : known - FIRST;
}

int device_index_current(void)
{
    CUdevice device;
    CUresult error = DRIVER(cuCtxGetDevice, &device);
    if (error == CUDA_SUCCESS)
        return device_index(device);
    return is_the_programs(error) || vcuda_limits()->device_count == 0 ? VCUDA_NOT_LIMITED : VCUDA_UNKNOWN;
}

static bool is_only_one(void)
{
    int count = atomic_load_explicit(&devices, memory_order_relaxed);
    if (count == 0 && DRIVER(cuDeviceGetCount, &count) == CUDA_SUCCESS)
        atomic_store_explicit(&devices, count, memory_order_relaxed);
    return count == 1;
}

int device_index_of(CUcontext current)
{
    return current != NULL && is_only_one() ? device_index(0) : device_index_current();
}
