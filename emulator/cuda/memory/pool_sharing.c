/*
 * Entry points of pools that several processes share: the pool by descriptor, its allocations by export data.
 *
 * In: pools made with a handle type, descriptors, export data. Out: imported pools, which allocate nothing themselves, and pointers
 * to the exporter's bytes. Invariant: a pointer is only imported into the pool that it came from.
 */
#include <string.h>
#include <unistd.h>

#include "../context.h"
#include "../entry.h"
#include "foreign.h"
#include "pool.h"
#include "shared_file.h"

#define POOL_MAGIC UINT64_C(0x4c4f4f5041435556)

/* What the descriptor of an exported pool holds. */
struct shared_pool {
    uint64_t magic, identity;
    uint64_t slot;              /* of its GPU on the machine */
};

struct export_data {
    uint64_t identity;          /* of the pool */
    struct foreign_place place;
};

_Static_assert(sizeof(struct export_data) <= sizeof(CUmemPoolPtrExportData), "export data fit");

static int write_shared(struct pool *pool)
{
    int fd = anonymous_file_make(sizeof(struct shared_pool));
    while (pool->identity == 0)
        pool->identity = random_word();
    struct shared_pool shared = {POOL_MAGIC, pool->identity, device_slot(pool->device)};
    if (fd >= 0 && pwrite(fd, &shared, sizeof shared, 0) == (ssize_t)sizeof shared)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

ENTRY(cuMemPoolExportToShareableHandle)(void *out, CUmemoryPool handle, CUmemAllocationHandleType type, unsigned long long flags)
{
    if (out == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    struct pool *pool = pool_find(handle);
    bool may = pool != NULL && !pool->imported && pool->properties.handleTypes & type;
    int fd = may ? write_shared(pool) : -1;
    memory_unlock();
    if (!may)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &fd, sizeof fd);
    return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult import(const struct shared_pool *shared, CUmemoryPool *out)
{
    int device = 0;
    while (device < device_count() && device_slot(device) != shared->slot)
        device++;
    if (device == device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    const CUmemPoolProps properties = {CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                       {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    struct pool *made = pool_make(&properties);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->imported = true;
    made->identity = shared->identity;
    *out = pool_handle(made);
    return CUDA_SUCCESS;
}

ENTRY(cuMemPoolImportFromShareableHandle)(CUmemoryPool *out, void *handle, CUmemAllocationHandleType type, unsigned long long flags)
{
    struct shared_pool shared;
    if (out == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (pread((int)(intptr_t)handle, &shared, sizeof shared, 0) != (ssize_t)sizeof shared || shared.magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    CUresult result = import(&shared, out);
    memory_unlock();
    return result;
}

ENTRY(cuMemPoolExportPointer)(CUmemPoolPtrExportData *out, CUdeviceptr pointer)
{
    struct export_data data;
    CUresult result = CUDA_SUCCESS;
    memory_lock();
    const struct allocation *found = allocation_at(pointer);
    const struct pool *pool = found != NULL && found->kind == ALLOCATION_POOLED ? found->owner : NULL;
    if (out == NULL || pool == NULL || pool->identity == 0)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (!foreign_place_of(found, &data.place))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        data.identity = pool->identity;
    memory_unlock();
    if (result == CUDA_SUCCESS) {
        memset(out, 0, sizeof *out);
        memcpy(out, &data, sizeof data);
    }
    return result;
}

ENTRY(cuMemPoolImportPointer)(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *from)
{
    struct export_data data;
    if (out == NULL || from == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&data, from, sizeof data);
    memory_lock();
    const struct pool *pool = pool_find(handle);
    bool right = pool != NULL && pool->imported && pool->identity == data.identity;
    struct allocation *opened = right ? foreign_open(ALLOCATION_IMPORTED, &data.place) : NULL;
    if (opened != NULL)
        *out = opened->span.start;
    memory_unlock();
    return opened == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
