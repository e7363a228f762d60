/*
 * cuMemCreate's memory between processes and GPUs: exported, bound, imported, and what others hold of it.
 *
 * In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY for memory of another container that has no room here.
 * Invariants: who exports memory counts it until nobody can reach it; who imports memory of a process of this container counts it from that process's
 * death on, without a gap (state.h: vcuda_borrow), and memory of others from the import on. What was exported by a fabric handle counts until the driver can
 * import it no more. Fabric handles say nothing of whose memory they
 * are: an import by one is not counted.
 */
#include "account.h"
#include "backing.h"
#include "interposer/cuda/hooks.h"
#include "virtual_hooks.h"

#include <unistd.h>

static const uint64_t follow_ns = UINT64_C(200000000);
static _Atomic bool shared;     /* something was exported or imported */

/* ---- how large another's memory is ---- */

static uint64_t most_that_maps(CUmemGenericAllocationHandle handle, CUdeviceptr place, size_t unit, uint64_t units)
{
    uint64_t fits = 0, too_large = units + 1;

    while (too_large - fits > 1) {
        uint64_t middle = fits + (too_large - fits) / 2;
        if (DRIVER(cuMemMap, place, middle * unit, 0, handle, 0) != CUDA_SUCCESS) {
            too_large = middle;
            continue;
        }
        DRIVER(cuMemUnmap, place, middle * unit);
        fits = middle;
    }
    return fits * unit;
}

/* The driver does not tell, but it maps no more than there is. 0: it cannot be found. */
static uint64_t size_of(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *prop)
{
    size_t unit, all;
    CUdeviceptr place;
    CUdevice device;

    if (!virtual_device_at(&prop->location, &device))
        return 0;
    if (DRIVER(cuMemGetAllocationGranularity, &unit, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS || unit == 0)
        return 0;
    if (DRIVER(cuDeviceTotalMem_v2, &all, device) != CUDA_SUCCESS)
        return 0;
    uint64_t units = all / unit + 1;
    if (DRIVER(cuMemAddressReserve, &place, units * unit, 0, 0, 0) != CUDA_SUCCESS)
        return 0;
    uint64_t size = most_that_maps(handle, place, unit, units);
    DRIVER(cuMemAddressFree, place, units * unit);
    return size;
}

/* ---- what others hold, and what the dead leave ---- */

static uint64_t size_of_orphan(uint64_t handle, uint64_t mapped)
{
    CUmemAllocationProp prop;

    if (handle == 0 || DRIVER(cuMemGetAllocationPropertiesFromHandle, &prop, handle) != CUDA_SUCCESS)
        return mapped;
    uint64_t size = size_of(handle, &prop);
    return size > mapped ? size : mapped;
}

static bool take_over_one(void)
{
    uint64_t handle, mapped;

    virtual_lock();
    struct memory *memory = backing_orphan_begin(vcuda_lender_ended, &handle, &mapped);
    virtual_unlock();
    if (memory == NULL)
        return false;
    uint64_t size = size_of_orphan(handle, mapped);
    virtual_lock();
    account_record(backing_device(memory), size);
    backing_orphan_end(memory, size, virtual_give_back);
    virtual_unlock();
    return size != 0;
}

/* What the driver answers where there is nothing behind a fabric handle. Any other error says nothing of it. */
static bool is_gone(CUresult error)
{
    return error == CUDA_ERROR_INVALID_HANDLE || error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_NOT_FOUND || error == CUDA_ERROR_NOT_SUPPORTED;
}

/* The one way to hear whether anybody, on whichever node, still has what was exported by a fabric handle: it can be imported. */
static bool ask_one_fabric(uint64_t now_ns)
{
    unsigned char handle[EXPORTS_FABRIC];
    CUmemGenericAllocationHandle found;

    virtual_lock();
    struct memory *memory = backing_fabric_begin(handle, now_ns);
    virtual_unlock();
    if (memory == NULL)
        return false;
    CUresult error = DRIVER(cuMemImportFromShareableHandle, &found, handle, CU_MEM_HANDLE_TYPE_FABRIC);
    if (error == CUDA_SUCCESS)
        DRIVER(cuMemRelease, found);
    virtual_lock();
    if (is_gone(error))
        backing_fabric_end(memory);
    virtual_unlock();
    return true;
}

void sharing_settle(void)
{
    uint64_t now_ns;
    struct account_span span;

    if (!atomic_load_explicit(&shared, memory_order_relaxed) || hook_nested())
        return;
    account_begin(&span, ACCOUNT_ANY);
    while (take_over_one())
        ;
    now_ns = vcuda_now_ns();
    while (ask_one_fabric(now_ns))
        ;
    if (!vcuda_lends()) {
        virtual_lock();
        backing_settle(virtual_give_back);
        virtual_unlock();
    }
    account_end(&span);
}

static uint64_t follow(uint64_t now_ns)
{
    sharing_settle();
    return now_ns + follow_ns;
}

static void note_shared(void)
{
    atomic_store(&shared, true);
    vcuda_helper_add(follow);
}

void sharing_forget(void)
{
    atomic_store(&shared, false);
}

/* ---- export ---- */

/* A call by which others may reach memory of this process. NULL: it is none that counts here. */
struct sharing {
    struct memory *memory;
    uint32_t owner;
    struct account_span span;
};

static void begin(struct sharing *sharing, CUmemGenericAllocationHandle handle, CUdeviceptr address)
{
    account_begin(&sharing->span, ACCOUNT_ANY);
    virtual_lock();
    sharing->memory = address != 0 ? backing_export_begin_at(address, &sharing->owner) : backing_export_begin(handle, &sharing->owner);
    virtual_unlock();
}

/* A descriptor of -1: how they reach it cannot be watched. */
static CUresult end(struct sharing *sharing, CUresult error, int descriptor)
{
    if (sharing->memory != NULL) {
        note_shared();
        virtual_lock();
        backing_export_end(sharing->memory, error == CUDA_SUCCESS, descriptor, sharing->owner, virtual_give_back);
        virtual_unlock();
    }
    account_end(&sharing->span);
    return error;
}

static CUresult end_fabric(struct sharing *sharing, CUresult error, const void *handle)
{
    if (sharing->memory != NULL) {
        note_shared();
        virtual_lock();
        backing_export_fabric(sharing->memory, error == CUDA_SUCCESS, handle, virtual_give_back);
        virtual_unlock();
    }
    account_end(&sharing->span);
    return error;
}

CUresult cuMemExportToShareableHandle(void *shareable_handle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handle_type,
                                      unsigned long long flags)
{
    struct sharing sharing;

    if (virtual_not_ours())
        return real.cuMemExportToShareableHandle(shareable_handle, handle, handle_type, flags);
    begin(&sharing, handle, 0);
    CUresult error = DRIVER(cuMemExportToShareableHandle, shareable_handle, handle, handle_type, flags);
    if (handle_type == CU_MEM_HANDLE_TYPE_FABRIC)
        return end_fabric(&sharing, error, shareable_handle);
    bool is_file = error == CUDA_SUCCESS && handle_type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return end(&sharing, error, is_file ? *(const int *)shareable_handle : -1);
}

/* What is bound once is held by a group of GPUs after its release: until the process ends, for unbinding names offsets of the group only. */
#define BINDS(handle, address, symbol, ...)                                                                            \
    struct sharing sharing;                                                                                            \
    if (virtual_not_ours())                                                                                            \
        return real.symbol(__VA_ARGS__);                                                                               \
    begin(&sharing, handle, address);                                                                                  \
    return end(&sharing, DRIVER(symbol, __VA_ARGS__), -1);

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mc_handle, size_t mc_offset, CUmemGenericAllocationHandle mem_handle, size_t mem_offset,
                            size_t size, unsigned long long flags)
{
    BINDS(mem_handle, 0, cuMulticastBindMem, mc_handle, mc_offset, mem_handle, mem_offset, size, flags)
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mc_handle, CUdevice device, size_t mc_offset, CUmemGenericAllocationHandle mem_handle,
                               size_t mem_offset, size_t size, unsigned long long flags)
{
    BINDS(mem_handle, 0, cuMulticastBindMem_v2, mc_handle, device, mc_offset, mem_handle, mem_offset, size, flags)
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mc_handle, size_t mc_offset, CUdeviceptr pointer, size_t size, unsigned long long flags)
{
    BINDS(0, pointer, cuMulticastBindAddr, mc_handle, mc_offset, pointer, size, flags)
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mc_handle, CUdevice device, size_t mc_offset, CUdeviceptr pointer, size_t size,
                                unsigned long long flags)
{
    BINDS(0, pointer, cuMulticastBindAddr_v2, mc_handle, device, mc_offset, pointer, size, flags)
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, CUmemGenericAllocationHandle mem_handle,
                                  uint64_t mem_offset, uint64_t size, unsigned long long flags)
{
    BINDS(mem_handle, 0, cuLogicalEndpointBindMem, endpoint, device, offset, mem_handle, mem_offset, size, flags)
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *pointer, uint64_t size,
                                   unsigned long long flags)
{
    BINDS(0, (CUdeviceptr)(uintptr_t)pointer, cuLogicalEndpointBindAddr, endpoint, device, offset, pointer, size, flags)
}

/* ---- import ---- */

/* Whose it is, as far as this container counts it. */
static void find_origin(struct backing_import *import, int descriptor)
{
    uint32_t owner = exports_owner(descriptor);

    if (owner == (uint32_t)getpid())
        import->origin = backing_has_exports() ? BACKING_OWN : BACKING_FOREIGN;
    else if (owner != 0 && vcuda_borrow(owner, &import->lender))
        import->origin = BACKING_BORROWED;
    else
        import->origin = BACKING_FOREIGN;
}

/* False: there is no room for it. */
static bool charge_foreign(struct backing_import *import, CUmemGenericAllocationHandle handle, const CUmemAllocationProp *prop)
{
    import->bytes = size_of(handle, prop);
    if (import->bytes != 0 && account_charge(import->device, import->bytes))
        return true;
    import->bytes = 0;
    return false;
}

static bool remember(const struct backing_import *import, CUmemGenericAllocationHandle handle)
{
    struct backing_loss undone = {import->device, import->bytes, import->origin == BACKING_BORROWED ? &import->lender : NULL};

    virtual_lock();
    enum backing_imported imported = backing_imported(handle, import);
    if (imported != BACKING_NEW)
        virtual_give_back(&undone);
    virtual_unlock();
    return imported != BACKING_NO_MEMORY;
}

static bool is_counted(CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, CUmemAllocationProp *prop, struct backing_import *import)
{
    CUdevice device;

    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
           DRIVER(cuMemGetAllocationPropertiesFromHandle, prop, handle) == CUDA_SUCCESS && virtual_device_at(&prop->location, &device) &&
           account_verdict(device, &import->device) == VERDICT_COUNT;
}

static bool keep(CUmemGenericAllocationHandle handle, void *os_handle, CUmemAllocationHandleType type)
{
    struct backing_import import = {.origin = BACKING_CREATED};
    CUmemAllocationProp prop;

    bool counted = is_counted(handle, type, &prop, &import);
    virtual_lock();
    if (counted && !backing_knows(handle))
        find_origin(&import, (int)(intptr_t)os_handle);
    virtual_unlock();
    return (import.origin != BACKING_FOREIGN || charge_foreign(&import, handle, &prop)) && remember(&import, handle);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType handle_type)
{
    if (hook_nested() || !account_needed())
        return real.cuMemImportFromShareableHandle(handle, os_handle, handle_type);
    if (vcuda_memory_closed())
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct account_span span;
    account_begin(&span, ACCOUNT_ANY);
    virtual_count();
    note_shared();
    CUresult error = DRIVER(cuMemImportFromShareableHandle, handle, os_handle, handle_type);
    if (error == CUDA_SUCCESS && !keep(*handle, os_handle, handle_type)) {
        DRIVER(cuMemRelease, *handle);
        error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    account_end(&span);
    return error;
}
