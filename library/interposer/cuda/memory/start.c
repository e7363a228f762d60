/*
 * The accounting's start, contexts that come and go, and forgetting all in a forked child. See memory.h.
 *
 * What was allocated in a context ends with it; memory of handles and pools belongs to the device and stays. Invariant: which context the
 * primary one is is asked before it ends, of the thread that ends it.
 */
#include "account.h"
#include "interposer/cuda/hooks.h"
#include "memory.h"
#include "ordinals.h"
#include "overhead.h"
#include "pools.h"
#include "relief.h"
#include "taking.h"
#include "virtual_hooks.h"

static _Atomic bool started;
static _Thread_local CUcontext ending;
static _Thread_local struct account_span span;

static void forget(void)
{
    taking_forget();
    virtual_forget();
    pools_forget();
    relief_forget();
    overhead_forget();
    ordinals_forget();
    account_forget();
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
}

/* Retained and released at once: NULL where it is not there. */
static CUcontext primary_of(CUdevice device)
{
    unsigned flags;
    int active = 0;
    CUcontext primary;

    if (DRIVER(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS || !active ||
        DRIVER(cuDevicePrimaryCtxRetain, &primary, device) != CUDA_SUCCESS)
        return NULL;
    if (HAS(cuDevicePrimaryCtxRelease_v2))
        DRIVER(cuDevicePrimaryCtxRelease_v2, device);
    else
        DRIVER(cuDevicePrimaryCtxRelease, device);
    return primary;
}

static void context_ends(CUdevice device, CUcontext context, enum context_fate fate)
{
    if (fate == CONTEXT_ENDING) {
        ending = context != NULL ? context : account_needed() ? primary_of(device) : NULL;
        account_begin(&span, ACCOUNT_ANY);
        return;
    }
    if (fate == CONTEXT_GONE && ending != NULL)
        taking_context_gone(ending);
    account_end(&span);
}

void memory_expect_context(CUdevice device)
{
    unsigned index;

    if (atomic_load(&started) && !hook_nested() && account_needed() && account_verdict(device, &index) == VERDICT_COUNT)
        overhead_expect();
}

void memory_settle(void)
{
    if (account_needed())
        overhead_settle();
}

void memory_start(void)
{
    vcuda_on_fork(forget);
    context_on_change(context_changed);
    context_on_end(context_ends);
    atomic_store(&started, true);
}
