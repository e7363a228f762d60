/*
 * Entry points of page-locked host memory: allocated here or registered by the application. None of it is a GPU's.
 *
 * In: sizes, addresses, flags. Out: real memory of this process, at the same address for the CPU and for the GPU. Registered memory
 * stays where it is; it is only known. Invariant: a range is registered once, and none that is allocated here.
 */
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../capture.h"
#include "../context.h"
#include "../entry.h"
#include "allocation.h"
#include "failure.h"
#include "host.h"

enum {
    ALLOC_FLAGS = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED,
    REGISTER_FLAGS = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |
                     CU_MEMHOSTREGISTER_READ_ONLY,
};

static uint64_t in_pages(uint64_t size)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (size + page - 1) / page * page;
}

static CUresult may_change(struct context **context)
{
    CUresult result = context_require(context);
    return result == CUDA_SUCCESS ? unsafe_call() : result;
}

static CUresult record(enum allocation_kind kind, const void *at, uint64_t size, unsigned flags, struct context *context)
{
    uint64_t start = (uintptr_t)at;
    CUresult result = CUDA_SUCCESS;
    memory_lock();
    struct allocation *made = NULL;
    if (allocation_overlaps(start, size))
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if ((made = allocation_make(kind, start, size)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (made != NULL) {
        made->context = context_handle(context_root(context));
        made->flags = flags;
        made->content = (char *)(uintptr_t)start;
    }
    memory_unlock();
    return result;
}

static CUresult allocate(const char *function, void **out, size_t bytes, unsigned flags)
{
    struct context *context;
    CUresult result = may_change(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (out == NULL || bytes == 0 || flags & ~(unsigned)ALLOC_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (failure_due(function) || bytes > SIZE_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *at = mmap(NULL, in_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = record(ALLOCATION_HOST, at, bytes, flags, context);
    if (result == CUDA_SUCCESS)
        *out = at;
    else
        munmap(at, in_pages(bytes));
    return result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ENTRY(cuMemAllocHost_v2)(void **out, size_t bytes)
{
    return allocate("cuMemAllocHost_v2", out, bytes, 0);
}

ENTRY(cuMemAllocHost)(void **out, unsigned int bytes)
{
    return allocate("cuMemAllocHost", out, bytes, 0);
}

ENTRY(cuMemHostAlloc)(void **out, size_t bytes, unsigned int flags)
{
    return allocate("cuMemHostAlloc", out, bytes, flags);
}

void host_release(struct allocation *allocation)
{
    if (allocation->kind == ALLOCATION_HOST)
        munmap(allocation->content, in_pages(allocation->span.size));
    allocation_drop(allocation);
}

static CUresult release(const void *at, enum allocation_kind kind, CUresult unknown)
{
    struct context *context;
    CUresult result = may_change(&context);
    if (result == CUDA_SUCCESS)
        result = context_wait(context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    struct allocation *found = allocation_at((uintptr_t)at);
    bool right = found != NULL && found->kind == kind;
    if (right)
        host_release(found);
    memory_unlock();
    return right ? CUDA_SUCCESS : unknown;
}

ENTRY(cuMemFreeHost)(void *at)
{
    return release(at, ALLOCATION_HOST, CUDA_ERROR_INVALID_VALUE);
}

/* ENOMEM of msync: not all of it is there. */
static bool is_mapped(const void *at, size_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)at / page * page, to = (uintptr_t)at + bytes;
    return to > from && msync((void *)(uintptr_t)from, to - from, MS_ASYNC) == 0;
}

static CUresult check_registration(struct context *context, const void *at, size_t bytes, unsigned flags)
{
    int read_only = 0;
    if (at == NULL || bytes == 0 || flags & ~(unsigned)REGISTER_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_NOT_SUPPORTED;
    entry_cuDeviceGetAttribute(&read_only, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, context_device(context));
    if (flags & CU_MEMHOSTREGISTER_READ_ONLY && !read_only)
        return CUDA_ERROR_NOT_SUPPORTED;
    return is_mapped(at, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemHostRegister_v2)(void *at, size_t bytes, unsigned int flags)
{
    struct context *context;
    CUresult result = may_change(&context);
    if (result == CUDA_SUCCESS)
        result = check_registration(context, at, bytes, flags);
    return result == CUDA_SUCCESS ? record(ALLOCATION_REGISTERED, at, bytes, flags, context) : result;
}

ENTRY(cuMemHostRegister)(void *at, size_t bytes, unsigned int flags)
{
    return entry_cuMemHostRegister_v2(at, bytes, flags);
}

ENTRY(cuMemHostUnregister)(void *at)
{
    return release(at, ALLOCATION_REGISTERED, at == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* Every device here can use the host's pointers, so that page-locked memory is mapped, independent of its flags. */
ENTRY(cuMemHostGetDevicePointer_v2)(CUdeviceptr *pointer, void *at, unsigned int flags)
{
    struct context *context;
    CUresult result = context_require(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    const struct allocation *found = allocation_holding((uintptr_t)at);
    bool right = found != NULL && (found->kind == ALLOCATION_HOST || found->kind == ALLOCATION_REGISTERED);
    memory_unlock();
    if (right)
        *pointer = (uintptr_t)at;
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemHostGetDevicePointer)(CUdeviceptr_v1 *pointer, void *at, unsigned int flags)
{
    CUdeviceptr found;
    if (pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = entry_cuMemHostGetDevicePointer_v2(&found, at, flags);
    if (result == CUDA_SUCCESS && found > UINT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *pointer = (CUdeviceptr_v1)found;
    return result;
}
