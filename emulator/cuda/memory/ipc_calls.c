/*
 * Entry points of memory shared by IPC handle: cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle. Events are core's.
 *
 * In: pointers, handles. Out: handles that any process of the machine can open while the memory is there, and pointers to the same bytes.
 * Invariant: a handle that was not made here, or whose maker is gone, opens nothing.
 */
#include <string.h>

#include "../capture.h"
#include "../context.h"
#include "../entry.h"
#include "foreign.h"

#define HANDLE_MAGIC UINT64_C(0x4d43504941435556)

struct handle {
    uint64_t magic;
    struct foreign_place place;
};

_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "a handle fits");

static CUresult may_share(struct context **context)
{
    CUresult result = context_require(context);
    return result == CUDA_SUCCESS ? unsafe_call() : result;
}

ENTRY(cuIpcGetMemHandle)(CUipcMemHandle *out, CUdeviceptr pointer)
{
    struct context *context;
    struct handle handle = {.magic = HANDLE_MAGIC};
    CUresult result = may_share(&context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    const struct allocation *found = allocation_at(pointer);
    if (out == NULL || found == NULL || found->kind != ALLOCATION_LINEAR)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (!foreign_place_of(found, &handle.place))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    memory_unlock();
    if (result == CUDA_SUCCESS) {
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
    }
    return result;
}

static CUresult open_handle(CUdeviceptr *pointer, const CUipcMemHandle *from, unsigned flags)
{
    struct context *context;
    struct handle handle;
    CUresult result = may_share(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&handle, from, sizeof handle);
    if (handle.magic != HANDLE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sharing_is_own(&handle.place.name))
        return CUDA_ERROR_INVALID_CONTEXT; /* what is one's own is not opened */
    memory_lock();
    struct allocation *opened = foreign_open(ALLOCATION_OPENED, &handle.place);
    if (opened != NULL) {
        opened->context = context_handle(context_root(context));
        *pointer = opened->span.start;
    }
    memory_unlock();
    return opened == NULL ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}

ENTRY(cuIpcOpenMemHandle)(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(pointer, &handle, flags);
}

ENTRY(cuIpcOpenMemHandle_v2)(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(pointer, &handle, flags);
}

ENTRY(cuIpcCloseMemHandle)(CUdeviceptr pointer)
{
    struct context *context;
    CUresult result = may_share(&context);
    if (result == CUDA_SUCCESS)
        result = context_wait(context);
    if (result != CUDA_SUCCESS)
        return result;
    memory_lock();
    struct allocation *found = allocation_at(pointer);
    bool right = found != NULL && found->kind == ALLOCATION_OPENED;
    if (right)
        foreign_release(found);
    memory_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
