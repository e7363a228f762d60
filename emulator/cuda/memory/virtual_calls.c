/*
 * Entry points of virtual memory management.
 *
 * In: arguments of the application. Out: what virtual.c makes of them, and the driver's error codes. None of these needs a context,
 * and none is forbidden by a capture. Invariant: sizes, addresses and handles are checked here, before anything changes.
 */
#include <string.h>

#include "../context.h"
#include "../entry.h"
#include "location.h"
#include "failure.h"
#include "sharing.h"
#include "virtual.h"

enum { PAGE = 4096, DEVICE_HANDLES = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };

ENTRY(cuMemAddressReserve)(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    uint64_t start;
    bool aligned = (alignment & (alignment - 1)) == 0 && size % PAGE == 0 && hint % PAGE == 0;
    if (pointer == NULL || size == 0 || !aligned || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    CUresult result = reservation_make(size, alignment, hint, &start);
    memory_unlock();
    if (result == CUDA_SUCCESS)
        *pointer = start;
    return result;
}

ENTRY(cuMemAddressFree)(CUdeviceptr pointer, size_t size)
{
    memory_lock();
    CUresult result = reservation_free(pointer, size);
    memory_unlock();
    return result;
}

static CUresult check_location(const CUmemAllocationProp *properties)
{
    const CUmemLocation *at = &properties->location;
    bool shared = properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    switch (at->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_valid(at->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
        return shared ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return at->id < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* There is no fabric here: it gives no handles for one; applications ask for them first and continue without them. */
static CUresult check_properties(const CUmemAllocationProp *properties)
{
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_location(properties);
    if (result == CUDA_SUCCESS && properties->requestedHandleTypes & ~DEVICE_HANDLES)
        return CUDA_ERROR_NOT_SUPPORTED;
    return result;
}

static CUresult read_properties(const CUmemAllocationProp *given, CUmemAllocationProp *properties)
{
    if (given == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = *given;
    properties->location = location_of(given->location);
    return check_properties(properties);
}

ENTRY(cuMemGetAllocationGranularity)(size_t *granularity, const CUmemAllocationProp *given, CUmemAllocationGranularity_flags option)
{
    CUmemAllocationProp properties;
    CUresult result = read_properties(given, &properties);
    if (result != CUDA_SUCCESS)
        return result;
    if (granularity == NULL || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SPACE_UNIT;
    return CUDA_SUCCESS;
}

ENTRY(cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *given, unsigned long long flags)
{
    struct object *made;
    CUmemAllocationProp properties;
    if (handle == NULL || size == 0 || size % SPACE_UNIT != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = read_properties(given, &properties);
    if (result != CUDA_SUCCESS)
        return result;
    if (failure_due("cuMemCreate"))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory_lock();
    result = object_make(size, &properties, &made);
    if (result == CUDA_SUCCESS)
        *handle = made->span.start;
    memory_unlock();
    return result;
}

ENTRY(cuMemRelease)(CUmemGenericAllocationHandle handle)
{
    memory_lock();
    struct object *found = object_find(handle);
    if (found != NULL)
        object_release(found);
    memory_unlock();
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

ENTRY(cuMemMap)(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (size == 0 || size % SPACE_UNIT != 0 || pointer % SPACE_UNIT != 0 || offset != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    struct object *object = object_find(handle);
    CUresult result = object == NULL ? CUDA_ERROR_INVALID_VALUE : mapping_make(pointer, size, object);
    memory_unlock();
    return result;
}

ENTRY(cuMemUnmap)(CUdeviceptr pointer, size_t size)
{
    memory_lock();
    CUresult result = mapping_remove(pointer, size);
    memory_unlock();
    return result;
}

static CUresult check_access(const CUmemAccessDesc *access, int owner)
{
    int peers = 1;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (access->location.type == CU_MEM_LOCATION_TYPE_HOST || access->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return CUDA_SUCCESS;
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(access->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (owner != HOST && owner != access->location.id)
        entry_cuDeviceCanAccessPeer(&peers, access->location.id, owner);
    return peers ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

ENTRY(cuMemSetAccess)(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count)
{
    if (access == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct mapping *mapping = mapping_holding(pointer);
    CUresult result = mapping == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = check_access(&access[i], mapping->object->physical->device);
    if (result == CUDA_SUCCESS)
        result = mapping_allow(pointer, size, access, count);
    memory_unlock();
    return result;
}

ENTRY(cuMemGetAccess)(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    if (flags == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    bool on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    bool on_host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (on_device ? !device_valid(location->id) : !on_host)
        return on_device ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct mapping *mapping = mapping_holding(pointer);
    if (mapping != NULL)
        *flags = on_device ? mapping->access[location->id] : mapping->host_access;
    memory_unlock();
    return mapping == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

ENTRY(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *address)
{
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    struct mapping *mapping = mapping_holding((uintptr_t)address);
    if (mapping != NULL) {
        mapping->object->handles++;
        *handle = mapping->object->span.start;
    }
    memory_unlock();
    return mapping == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

ENTRY(cuMemGetAllocationPropertiesFromHandle)(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    if (properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct object *found = object_find(handle);
    if (found != NULL)
        *properties = found->properties;
    memory_unlock();
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

ENTRY(cuMemExportToShareableHandle)(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                    unsigned long long flags)
{
    if (out == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    struct object *found = object_find(handle);
    bool may = found != NULL && found->properties.requestedHandleTypes & type;
    int fd = may ? sharing_export(found->physical, &found->properties) : -1;
    memory_unlock();
    if (!may)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &fd, sizeof fd);
    return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* The descriptor stays the application's. */
ENTRY(cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
    struct object *found;
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    CUresult result = object_import((int)(intptr_t)os_handle, &found);
    if (result == CUDA_SUCCESS)
        *handle = found->span.start;
    memory_unlock();
    return result;
}
