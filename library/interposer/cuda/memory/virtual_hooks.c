/*
 * cuMemCreate and the holders of its memory: release, retain, map, unmap. Those in other processes: sharing_hooks.c.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY for memory of a device that has no room. Memory of the host, of
 * devices without a limit is not counted. Invariant: no lock is held while the driver is called, which may wait for the GPU;
 * what it takes back is out of our tables before, what it gives is in them after. In between nobody takes the difference for overhead, and the
 * thread is not cancelled (account_span).
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "account.h"
#include "backing.h"
#include "interposer/cuda/hooks.h"
#include "memory.h"
#include "owners.h"
#include "virtual_hooks.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool counted;    /* something was created or imported */

bool virtual_not_ours(void)
{
    return hook_nested() || !atomic_load_explicit(&counted, memory_order_relaxed);
}

void virtual_lock(void)
{
    pthread_mutex_lock(&lock);
}

void virtual_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void virtual_count(void)
{
    atomic_store(&counted, true);
}

void virtual_give_back(const struct backing_loss *loss)
{
    account_uncharge(loss->device, loss->bytes);
    if (loss->lender != NULL)
        vcuda_return(loss->lender);
}

static bool record_created(CUmemGenericAllocationHandle handle, unsigned index, size_t size)
{
    pthread_mutex_lock(&lock);
    bool recorded = backing_created(handle, index, size);
    atomic_store(&counted, true);
    pthread_mutex_unlock(&lock);
    return recorded;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags, unsigned index)
{
    CUresult error = DRIVER(cuMemCreate, handle, size, prop, flags);
    if (error == CUDA_SUCCESS && !record_created(*handle, index, size)) {
        DRIVER(cuMemRelease, *handle);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (error != CUDA_SUCCESS)
        account_uncharge(index, size);
    return error;
}

/* The memory of a GPU may be a NUMA node of the machine (Grace). */
static bool is_node(CUdevice device, int node)
{
    int is_one = 0, own = -1;

    return DRIVER(cuDeviceGetAttribute, &is_one, CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, device) == CUDA_SUCCESS && is_one != 0 &&
           DRIVER(cuDeviceGetAttribute, &own, CU_DEVICE_ATTRIBUTE_NUMA_ID, device) == CUDA_SUCCESS && own == node;
}

static bool device_of_node(int node, CUdevice *device)
{
    int count = 0;

    DRIVER(cuDeviceGetCount, &count);
    for (*device = 0; *device < count; (*device)++)
        if (is_node(*device, node))
            return true;
    return false;
}

bool virtual_device_at(const CUmemLocation *location, CUdevice *device)
{
    if (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return device_of_node(location->id, device);
    bool is_part = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    *device = is_part ? location->id & 0xff : location->id;     /* the byte above it says which part of the GPU's memory */
    return is_part || location->type == CU_MEM_LOCATION_TYPE_DEVICE;
}

bool memory_may_be_at(const CUmemLocation *location)
{
    unsigned index;
    CUdevice device;

    return hook_nested() || !account_needed() || !virtual_device_at(location, &device) || account_verdict(device, &index) != VERDICT_REFUSE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    unsigned index;
    CUdevice device;

    if (hook_nested() || handle == NULL || prop == NULL || size == 0 || !account_needed() || !virtual_device_at(&prop->location, &device))
        return real.cuMemCreate(handle, size, prop, flags);
    enum verdict verdict = account_verdict(device, &index);
    if (verdict == VERDICT_REFUSE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (verdict == VERDICT_PASS)
        return DRIVER(cuMemCreate, handle, size, prop, flags);
    memory_meet(index);
    struct account_span span;
    if (!account_open(&span, index, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = create(handle, size, prop, flags, index);
    account_end(&span);
    return error;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (virtual_not_ours())
        return real.cuMemRetainAllocationHandle(handle, addr);
    struct account_span span;
    account_begin(&span, ACCOUNT_ANY);
    CUresult error = DRIVER(cuMemRetainAllocationHandle, handle, addr);
    pthread_mutex_lock(&lock);
    if (error == CUDA_SUCCESS)
        backing_retained(*handle, (uintptr_t)addr);
    pthread_mutex_unlock(&lock);
    account_end(&span);
    return error;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (virtual_not_ours())
        return real.cuMemRelease(handle);
    struct account_span span;
    account_begin(&span, ACCOUNT_ANY);
    pthread_mutex_lock(&lock);
    struct memory *memory = backing_release_begin(handle);
    pthread_mutex_unlock(&lock);
    CUresult error = DRIVER(cuMemRelease, handle);
    if (memory != NULL) {
        pthread_mutex_lock(&lock);
        backing_release_end(memory, handle, error == CUDA_SUCCESS, virtual_give_back);
        pthread_mutex_unlock(&lock);
    }
    account_end(&span);
    return error;
}

static bool remember(struct memory *memory, CUdeviceptr pointer, size_t size, bool mapped)
{
    pthread_mutex_lock(&lock);
    bool remembered = backing_map_end(memory, pointer, size, mapped, virtual_give_back);
    pthread_mutex_unlock(&lock);
    return remembered;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (virtual_not_ours())
        return real.cuMemMap(pointer, size, offset, handle, flags);
    struct account_span span;
    account_begin(&span, ACCOUNT_ANY);
    pthread_mutex_lock(&lock);
    struct memory *memory = backing_map_begin(handle);
    pthread_mutex_unlock(&lock);
    CUresult error = DRIVER(cuMemMap, pointer, size, offset, handle, flags);
    if (memory != NULL && !remember(memory, pointer, size, error == CUDA_SUCCESS)) {
        DRIVER(cuMemUnmap, pointer, size);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    account_end(&span);
    return error;
}

/* Nobody maps anything there again before this has returned. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    if (virtual_not_ours())
        return real.cuMemUnmap(pointer, size);
    struct account_span span;
    account_begin(&span, ACCOUNT_ANY);
    CUresult error = DRIVER(cuMemUnmap, pointer, size);
    pthread_mutex_lock(&lock);
    if (error == CUDA_SUCCESS)
        backing_unmapped(pointer, size, virtual_give_back);
    pthread_mutex_unlock(&lock);
    account_end(&span);
    return error;
}

/* ---- sparse arrays ---- */

enum { LEVEL, LAYER, OFFSETS, EXTENTS = OFFSETS + 3 };

static struct backing_part part_of(const CUarrayMapInfo *info)
{
    struct backing_part part = {.array = info->resource, .kind = (unsigned)info->subresourceType};
    unsigned numbers[8];

    memcpy(numbers, info->subresource, sizeof numbers);
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
        part.layer = numbers[0];
        part.at[0] = info->subresource[1];
        part.extent[0] = info->subresource[2];
        return part;
    }
    part.level = numbers[LEVEL];
    part.layer = numbers[LAYER];
    for (int i = 0; i < 3; i++) {
        part.at[i] = numbers[OFFSETS + i];
        part.extent[i] = numbers[EXTENTS + i];
    }
    return part;
}

static void begin_parts(const CUarrayMapInfo *list, unsigned count, struct memory **memories)
{
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            memories[i] = backing_map_begin(list[i].memHandle);
    pthread_mutex_unlock(&lock);
}

/* The memory is there as long as the handle or the part: which of them ends first is the application's affair. */
static void end_part(const CUarrayMapInfo *info, struct memory *memory, bool agreed, const void *owner)
{
    struct backing_part part = part_of(info);

    if (agreed && (memory != NULL || info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP))
        backing_part_unmapped(&part, virtual_give_back);
    if (memory != NULL && agreed)
        backing_part_mapped(memory, &part, owner);
    else if (memory != NULL)
        backing_map_end(memory, 0, 0, false, virtual_give_back);
}

static CUresult ask_to_map(CUarrayMapInfo *list, unsigned count, CUstream stream, bool per_thread)
{
    return per_thread ? DRIVER(cuMemMapArrayAsync_ptsz, list, count, stream) : DRIVER(cuMemMapArrayAsync, list, count, stream);
}

static CUresult map_arrays(CUarrayMapInfo *list, unsigned count, CUstream stream, bool per_thread)
{
    struct memory **memories = virtual_not_ours() || list == NULL || count == 0 ? NULL : calloc(count, sizeof *memories);
    struct account_span span;

    if (memories == NULL)
        return ask_to_map(list, count, stream, per_thread);
    account_begin(&span, ACCOUNT_ANY);
    begin_parts(list, count, memories);
    CUresult error = ask_to_map(list, count, stream, per_thread);
    const void *owner = owners_current();
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < count; i++)
        end_part(&list[i], memories[i], error == CUDA_SUCCESS, owner);
    pthread_mutex_unlock(&lock);
    account_end(&span);
    free(memories);
    return error;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *map_info_list, unsigned int count, CUstream stream)
{
    return map_arrays(map_info_list, count, stream, false);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *map_info_list, unsigned int count, CUstream stream)
{
    return map_arrays(map_info_list, count, stream, true);
}

void virtual_array_gone(const void *array)
{
    if (virtual_not_ours() || array == NULL)
        return;
    pthread_mutex_lock(&lock);
    backing_array_gone(array, virtual_give_back);
    pthread_mutex_unlock(&lock);
}

void virtual_owner_gone(const void *owner)
{
    if (virtual_not_ours() || owner == NULL)
        return;
    pthread_mutex_lock(&lock);
    backing_owner_gone(owner, virtual_give_back);
    pthread_mutex_unlock(&lock);
}

void virtual_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    backing_forget();
    sharing_forget();
    atomic_store(&counted, false);
}
