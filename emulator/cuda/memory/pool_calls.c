/*
 * Entry points of memory pools: making, choosing, looking at and trimming them.
 *
 * In: arguments of the application. Out: handles and the driver's error codes. Allocation is in pool_streams.c, sharing between
 * processes in pool_sharing.c. Invariant: a device's default pool is always there, and current wherever nothing else was chosen.
 */
#include "../context.h"
#include "../entry.h"
#include "location.h"
#include "pool.h"
#include "pool_current.h"

static struct pool *current[MAX_GPUS], *current_host;

struct pool *pool_current(int device)
{
    return current[device] != NULL ? current[device] : pool_default(device);
}

static CUresult check_location(const CUmemPoolProps *properties)
{
    const CUmemLocation *at = &properties->location;
    bool shared = properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE;
    if (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    switch (at->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return device_valid(at->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST:
        return shared ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return at->id < 0 ? CUDA_ERROR_INVALID_VALUE : shared ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult pool_check_properties(const CUmemPoolProps *properties)
{
    if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED;
    return properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED ? check_location(properties) : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *given)
{
    if (pool == NULL || given == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUmemPoolProps properties = *given;
    properties.location = location_of(given->location);
    CUresult result = pool_check_properties(&properties);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    struct pool *made = pool_make(&properties);
    if (made != NULL)
        *pool = pool_handle(made);
    memory_unlock();
    return made == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuMemPoolDestroy)(CUmemoryPool handle)
{
    memory_lock();
    struct pool *pool = pool_find(handle);
    bool may = pool != NULL && !pool->permanent;
    for (int i = 0; may && i < MAX_GPUS; i++)
        current[i] = current[i] == pool ? NULL : current[i];
    if (may && current_host == pool)
        current_host = NULL;
    if (may)
        pool_destroy(pool);
    memory_unlock();
    return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemPoolTrimTo)(CUmemoryPool handle, size_t keep)
{
    memory_lock();
    struct pool *pool = pool_find(handle);
    bool may = pool != NULL && !pool->imported;
    if (may)
        pool_trim(pool, keep);
    memory_unlock();
    return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set(struct pool *pool, CUmemPool_attribute attribute, const void *value)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int32_t *)value != 0;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool_set_threshold(pool, *(const uint64_t *)value);
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (*(const uint64_t *)value == 0)
            pool->arena.reserved_high = pool->arena.reserved;
        return *(const uint64_t *)value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const uint64_t *)value == 0)
            pool->used_high = pool->used;
        return *(const uint64_t *)value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

ENTRY(cuMemPoolSetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    memory_lock();
    struct pool *pool = pool_find(handle);
    CUresult result = pool == NULL || value == NULL || pool->imported ? CUDA_ERROR_INVALID_VALUE : set(pool, attribute, value);
    memory_unlock();
    return result;
}

static CUresult put_word(void *to, uint64_t value)
{
    *(uint64_t *)to = value;
    return CUDA_SUCCESS;
}

static CUresult put_int(void *to, int value)
{
    *(int *)to = value;
    return CUDA_SUCCESS;
}

static CUresult get(const struct pool *pool, CUmemPool_attribute attribute, void *value)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return put_int(value, pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES]);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return put_word(value, pool->threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return put_word(value, pool->arena.reserved);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return put_word(value, pool->arena.reserved_high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return put_word(value, pool->used);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return put_word(value, pool->used_high);
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
        return put_int(value, (int)pool->properties.allocType);
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
        return put_int(value, (int)pool->properties.handleTypes);
    case CU_MEMPOOL_ATTR_LOCATION_ID:
        return put_int(value, pool->properties.location.id);
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
        return put_int(value, (int)pool->properties.location.type);
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
        return put_word(value, pool->arena.most);
    case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
        return put_int(value, 0);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

ENTRY(cuMemPoolGetAttribute)(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    memory_lock();
    const struct pool *pool = pool_find(handle);
    CUresult result = pool == NULL || value == NULL ? CUDA_ERROR_INVALID_VALUE : get(pool, attribute, value);
    memory_unlock();
    return result;
}

/* A pool's own device always reaches it; another one where they are peers. */
static CUresult check_access(const struct pool *pool, const CUmemAccessDesc *access)
{
    int peers = 1, device = access->location.id;
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return pool->device == HOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (pool->device == device)
        return access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (pool->device != HOST)
        entry_cuDeviceCanAccessPeer(&peers, device, pool->device);
    return peers ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult set_access(struct pool *pool, const CUmemAccessDesc *map, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        CUresult result = check_access(pool, &map[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            pool->access[map[i].location.id] = (uint8_t)map[i].flags;
    }
    return CUDA_SUCCESS;
}

ENTRY(cuMemPoolSetAccess)(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    memory_lock();
    struct pool *pool = pool_find(handle);
    CUresult result = pool == NULL || (map == NULL && count > 0) ? CUDA_ERROR_INVALID_VALUE : set_access(pool, map, count);
    memory_unlock();
    return result;
}

ENTRY(cuMemPoolGetAccess)(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    memory_lock();
    const struct pool *pool = pool_find(handle);
    bool on_device = location != NULL && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    bool right = pool != NULL && flags != NULL && location != NULL && (!on_device || device_valid(location->id));
    if (right && on_device)
        *flags = (CUmemAccess_flags)pool->access[location->id];
    else if (right)
        *flags = pool->device == HOST ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    memory_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult give(CUmemoryPool *out, struct pool *(*which)(int), CUdevice device)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    struct pool *pool = which(device);
    memory_unlock();
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = pool_handle(pool);
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetDefaultMemPool)(CUmemoryPool *pool, CUdevice device)
{
    return give(pool, pool_default, device);
}

ENTRY(cuDeviceGetMemPool)(CUmemoryPool *pool, CUdevice device)
{
    return give(pool, pool_current, device);
}

ENTRY(cuDeviceSetMemPool)(CUdevice device, CUmemoryPool handle)
{
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memory_lock();
    struct pool *pool = pool_find(handle);
    bool right = pool != NULL && pool->device == device && !pool->imported;
    if (right)
        current[device] = pool;
    memory_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Managed pools are not emulated; a host has one pool for all its nodes. */
static CUresult check_kind(const CUmemLocation *given, CUmemAllocationType type, CUmemLocation *location)
{
    if (given == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *location = location_of(*given);
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED;
    const CUmemPoolProps properties = {.allocType = type, .location = *location};
    return pool_check_properties(&properties);
}

static struct pool *host_default_pool(int unused)
{
    (void)unused;
    return pool_default_host();
}

static struct pool *host_current_pool(int unused)
{
    (void)unused;
    return current_host != NULL ? current_host : pool_default_host();
}

ENTRY(cuMemGetDefaultMemPool)(CUmemoryPool *pool, CUmemLocation *given, CUmemAllocationType type)
{
    CUmemLocation location;
    CUresult result = check_kind(given, type, &location);
    if (result != CUDA_SUCCESS)
        return result;
    bool on_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return give(pool, on_device ? pool_default : host_default_pool, on_device ? location.id : 0);
}

ENTRY(cuMemGetMemPool)(CUmemoryPool *pool, CUmemLocation *given, CUmemAllocationType type)
{
    CUmemLocation location;
    CUresult result = check_kind(given, type, &location);
    if (result != CUDA_SUCCESS)
        return result;
    bool on_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    return give(pool, on_device ? pool_current : host_current_pool, on_device ? location.id : 0);
}

ENTRY(cuMemSetMemPool)(CUmemLocation *given, CUmemAllocationType type, CUmemoryPool handle)
{
    CUmemLocation location;
    CUresult result = check_kind(given, type, &location);
    if (result != CUDA_SUCCESS)
        return result;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return entry_cuDeviceSetMemPool(location.id, handle);
    memory_lock();
    struct pool *pool = pool_find(handle);
    bool right = pool != NULL && pool->device == HOST && pool->properties.location.type == location.type;
    if (right)
        current_host = pool;
    memory_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
