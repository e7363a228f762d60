/*
 * The accounting's start, contexts that come and go, and forgetting all in a forked child. See memory.h.
 *
 * What was allocated in a context ends with it; memory of handles, pools and graphs belongs to the device and stays, also where the primary
 * context is reset (seen on drivers: github.com/JuliaGPU/CUDA.jl/issues/1579). Which context the primary one is is heard from those who retain it.
 * It may come past them, by a private table of the driver: so a context that nobody was seen to make is taken for it at its first allocation. It is asked for
 * before a reset alone, which ends it anyway: to retain it for that could make it, and our release could be its end.
 */
#include "account.h"
#include "interposer/cuda/hooks.h"
#include "graphs.h"
#include "memory.h"
#include "ordinals.h"
#include "overhead.h"
#include "owners.h"
#include "pools.h"
#include "reclaim.h"
#include "charging.h"
#include "virtual_hooks.h"

enum { MOST_DEVICES = 256 };

static _Atomic bool started;
static CUcontext _Atomic primaries[MOST_DEVICES];
_Atomic bool memory_met[LIMITS_MAX_DEVICES];
static _Thread_local CUcontext ending;
static _Thread_local struct account_span span;

static void forget(void)
{
    charge_forget();
    virtual_forget();
    pools_forget();
    reclaim_forget();
    graphs_forget();
    overhead_forget();
    ordinals_forget();
    account_forget();
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++)
        atomic_store(&memory_met[i], false);
    for (int i = 0; i < MOST_DEVICES; i++)
        atomic_store(&primaries[i], NULL);
}

static void context_changed(CUdevice device, bool created)
{
    unsigned index;

    if (account_verdict(device, &index) != VERDICT_COUNT)
        return;
    if (!created) {
        overhead_changed();
        return;
    }
    ordinals_note(index, device);
    overhead_grew();
    atomic_store(&memory_met[index], true);
}

void memory_primary(int device, CUcontext primary)
{
    if (device >= 0 && device < MOST_DEVICES)
        atomic_store(&primaries[device], primary);
}

void memory_meet_slowly(unsigned index)
{
    CUdevice device;
    CUcontext context;

    vcuda_on_fork(forget);  /* before the tables' locks are taken; see account.c */
    if (!atomic_load(&started) || DRIVER(cuCtxGetDevice, &device) != CUDA_SUCCESS || device_index(device) != (int)index)
        return;
    DRIVER(cuCtxGetCurrent, &context);
    if (!context_is_made(context) && owners_current() != owners_green(device))
        memory_primary(device, context);
    vcuda_helper_watch();
    context_changed(device, true);
}

void memory_find_primary(CUdevice device)
{
    CUcontext context;
    unsigned flags;
    int active = 0;

    if (!atomic_load(&started) || hook_nested() || !account_needed())
        return;
    if (DRIVER(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS || active == 0)
        return;
    if (DRIVER(cuDevicePrimaryCtxRetain, &context, device) == CUDA_SUCCESS) {
        DRIVER(cuDevicePrimaryCtxRelease_v2, device);
        memory_primary(device, context);
    }
}

static CUcontext primary_of(CUdevice device)
{
    return device >= 0 && device < MOST_DEVICES ? atomic_load(&primaries[device]) : NULL;
}

static void owner_gone(const void *owner)
{
    charge_context_gone(owner);
    virtual_owner_gone(owner);
}

/* It counts no more for who asks next, in whichever process: the figure is read before that. */
static void context_gone(CUdevice device)
{
    unsigned index;

    if (account_verdict(device, &index) == VERDICT_COUNT)
        overhead_grew();
}

/* The next one may have another handle, and come unseen. */
static void primary_gone(CUdevice device)
{
    int index = device_index(device);

    if (owners_green(device) != NULL)
        owner_gone(owners_green(device));
    memory_primary(device, NULL);
    if (index >= 0)
        atomic_store(&memory_met[index], false);
}

static void context_ends(CUdevice device, CUcontext context, enum context_fate fate)
{
    if (fate == CONTEXT_ENDING) {
        ending = context != NULL ? context : primary_of(device);
        account_begin(&span, ACCOUNT_ANY);
    }
    if (ending != NULL && graphs_any())
        graphs_context_ends(ending, fate);
    if (fate == CONTEXT_ENDING)
        return;
    if (fate == CONTEXT_GONE && ending != NULL)
        owner_gone(ending);
    if (fate == CONTEXT_GONE && context == NULL)
        primary_gone(device);
    account_end(&span);
    if (fate == CONTEXT_GONE)
        context_gone(device);
}

void memory_expect_context(CUdevice device)
{
    unsigned index;

    if (atomic_load(&started) && !hook_nested() && account_needed() && account_verdict(device, &index) == VERDICT_COUNT)
        overhead_expect();
}

void memory_settle(int index)
{
    if (!account_needed())
        return;
    if (index >= 0)
        memory_meet((unsigned)index);
    overhead_settle();
    sharing_settle();
    if (index >= 0)
        reclaim_read((unsigned)index);
}

void memory_start(void)
{
    account_start();
    overhead_start();
    vcuda_on_fork(forget);
    context_on_change(context_changed);
    context_on_end(context_ends);
    atomic_store(&started, true);
}
