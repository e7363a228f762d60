/*
 * cuMemCreate and whoever holds what it made: release, retain, import, map, unmap.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY for memory of a device that has no room. Memory of the host, of
 * devices without a limit and of other processes is not counted. Invariant: one lock around the driver's answer and its record, so
 * that a number that the driver gives out again is not taken for the old one; cuMemCreate alone may wait for the GPU and takes it after.
 */
#include <pthread.h>

#include "account.h"
#include "backing.h"
#include "interposer/cuda/hooks.h"
#include "virtual_hooks.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool counted;    /* something was created or imported */

static bool not_ours(void)
{
    return hook_nested() || !atomic_load_explicit(&counted, memory_order_relaxed);
}

/* What the driver frees is given back a moment later: nobody takes the difference for overhead, and no thread is cancelled with the lock. */
static void enter(struct account_span *span)
{
    account_begin(span, ACCOUNT_ANY);
    pthread_mutex_lock(&lock);
}

static void leave(const struct account_span *span)
{
    pthread_mutex_unlock(&lock);
    account_end(span);
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
    if (!account_take(index, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult error = DRIVER(cuMemCreate, handle, size, prop, flags);
    if (error == CUDA_SUCCESS && !record_created(*handle, index, size)) {
        DRIVER(cuMemRelease, *handle);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (error != CUDA_SUCCESS)
        account_give(index, size);
    return error;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    unsigned index;

    if (hook_nested() || handle == NULL || prop == NULL || size == 0 || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !account_needed())
        return real.cuMemCreate(handle, size, prop, flags);
    enum verdict verdict = account_verdict(prop->location.id, &index);
    if (verdict == VERDICT_REFUSE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (verdict == VERDICT_PASS)
        return DRIVER(cuMemCreate, handle, size, prop, flags);
    struct account_span span;
    account_begin(&span, index);
    CUresult error = create(handle, size, prop, flags, index);
    account_end(&span);
    return error;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType handle_type)
{
    if (not_ours())
        return real.cuMemImportFromShareableHandle(handle, os_handle, handle_type);
    struct account_span span;
    enter(&span);
    CUresult error = DRIVER(cuMemImportFromShareableHandle, handle, os_handle, handle_type);
    if (error == CUDA_SUCCESS)
        backing_imported(*handle);
    leave(&span);
    return error;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (not_ours())
        return real.cuMemRetainAllocationHandle(handle, addr);
    struct account_span span;
    enter(&span);
    CUresult error = DRIVER(cuMemRetainAllocationHandle, handle, addr);
    if (error == CUDA_SUCCESS)
        backing_retained(*handle, (uintptr_t)addr);
    leave(&span);
    return error;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (not_ours())
        return real.cuMemRelease(handle);
    struct account_span span;
    enter(&span);
    CUresult error = DRIVER(cuMemRelease, handle);
    if (error == CUDA_SUCCESS)
        backing_released(handle, account_give);
    leave(&span);
    return error;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (not_ours())
        return real.cuMemMap(pointer, size, offset, handle, flags);
    struct account_span span;
    enter(&span);
    CUresult error = DRIVER(cuMemMap, pointer, size, offset, handle, flags);
    if (error == CUDA_SUCCESS && !backing_mapped(pointer, size, handle)) {
        DRIVER(cuMemUnmap, pointer, size);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    leave(&span);
    return error;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    if (not_ours())
        return real.cuMemUnmap(pointer, size);
    struct account_span span;
    enter(&span);
    CUresult error = DRIVER(cuMemUnmap, pointer, size);
    if (error == CUDA_SUCCESS)
        backing_unmapped(pointer, size, account_give);
    leave(&span);
    return error;
}

void virtual_forget(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    backing_forget();
    atomic_store(&counted, false);
}
