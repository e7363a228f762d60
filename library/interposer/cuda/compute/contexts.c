/*
 * The contexts that were launched in: found by a stream, kept from being touched when they end.
 *
 * Contexts are never forgotten here, only known to be gone: lanes and marks point to them. A program that makes and destroys contexts without end pays
 * some hundred bytes for each.
 */
#include <pthread.h>
#include <stdlib.h>

#include "interposer/cuda/hooks.h"
#include "process.h"

struct known {
    struct timebase timebase;
    struct known *next;
    CUdevice device;
    bool primary;
    _Atomic bool ended;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct known *_Atomic contexts;

void contexts_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    atomic_store(&contexts, NULL);
}

/* The primary context's handle can only be had by retaining it, which must not be what brings it into being. */
static bool is_primary(CUcontext context, CUdevice device)
{
    unsigned int flags;
    int active = 0;
    CUcontext primary = NULL;
    if (DRIVER(cuDevicePrimaryCtxGetState, device, &flags, &active) != CUDA_SUCCESS || active == 0 ||
        DRIVER(cuDevicePrimaryCtxRetain, &primary, device) != CUDA_SUCCESS)
        return false;
    if (HAS(cuDevicePrimaryCtxRelease_v2))
        DRIVER(cuDevicePrimaryCtxRelease_v2, device);
    else
        DRIVER(cuDevicePrimaryCtxRelease, device);
    return primary == context;
}

static struct known *find_context(CUcontext context)
{
    struct known *known = atomic_load_explicit(&contexts, memory_order_acquire);
    while (known != NULL && (known->timebase.context != context || atomic_load(&known->timebase.gone)))
        known = known->next;
    return known;
}

static struct known *add_context(CUcontext context, CUdevice device)
{
    struct known *added = calloc(1, sizeof *added);
    if (added == NULL)
        return NULL;
    timebase_init(&added->timebase, &compute_driver, context);
    added->device = device;
    added->primary = is_primary(context, device);
    added->next = atomic_load(&contexts);
    atomic_store_explicit(&contexts, added, memory_order_release);
    return added;
}

static CUdevice device_of(CUcontext context)
{
    CUdevice device = CU_DEVICE_INVALID;
    CUcontext before;
    if (compute_driver.context_push(context) != CUDA_SUCCESS)
        return CU_DEVICE_INVALID;
    if (DRIVER(cuCtxGetDevice, &device) != CUDA_SUCCESS)
        device = CU_DEVICE_INVALID;
    compute_driver.context_pop(&before);
    return device;
}

/* Everybody who measures holds its limiter's lock: once each was free, nobody is at the context any more. */
static void wait_for_harvests(void)
{
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        struct limiter *limiter = atomic_load_explicit(&compute_limiters[i], memory_order_acquire);
        if (limiter != NULL) {
            pthread_mutex_lock(&limiter->harvest_lock);
            pthread_mutex_unlock(&limiter->harvest_lock);
        }
    }
}

void contexts_end(CUdevice device, CUcontext context, enum context_fate fate)
{
    for (struct known *known = atomic_load_explicit(&contexts, memory_order_acquire); known != NULL; known = known->next) {
        bool meant = context == NULL ? known->primary && known->device == device : known->timebase.context == context;
        if (meant && !known->ended)
            atomic_store(&known->timebase.gone, fate != CONTEXT_KEPT);
        if (meant && fate == CONTEXT_GONE)
            atomic_store(&known->ended, true);
    }
    if (fate == CONTEXT_ENDING)
        wait_for_harvests();
    if (fate == CONTEXT_GONE)
        atomic_fetch_add(&compute_generation, 1);
}

static CUcontext context_of(CUstream stream)
{
    CUcontext context = NULL;
    if (HAS(cuStreamGetCtx) && DRIVER(cuStreamGetCtx, stream, &context) == CUDA_SUCCESS)
        return context;
    return DRIVER(cuCtxGetCurrent, &context) == CUDA_SUCCESS ? context : NULL;
}

struct belonging compute_belonging(CUstream stream)
{
    struct belonging belonging = {NULL, NULL};
    CUcontext context = context_of(stream);
    CUdevice device = context == NULL ? CU_DEVICE_INVALID : device_of(context);
    if (device == CU_DEVICE_INVALID)
        return belonging;
    belonging.limiter = compute_limiter(device);
    pthread_mutex_lock(&lock);
    struct known *known = belonging.limiter == NULL ? NULL : find_context(context);
    if (known == NULL && belonging.limiter != NULL)
        known = add_context(context, device);
    pthread_mutex_unlock(&lock);
    if (known == NULL)
        return (struct belonging){NULL, NULL};
    belonging.timebase = &known->timebase;
    return belonging;
}
