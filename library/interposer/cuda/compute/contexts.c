/*
 * The contexts that were launched in: found by a stream, kept from being touched when they end.
 *
 * A green context is not one of them: it may be current to one thread only, which is not ours to choose, and what is in it belongs to its device's primary
 * one, whose events are good in its streams. Contexts are never forgotten here, only known to be gone: queues and marks point to them. A program that makes
 * and destroys contexts without end pays some hundred bytes for each.
 * Which context the primary one is is never asked: its handle can only be had by retaining it, and our release could be its end. When it ends, all of its
 * device are taken for it; another one that lives on is found again at its next launch.
 */
#include <pthread.h>
#include <stdlib.h>

#include "captures.h"
#include "in_flight.h"
#include "interposer/cuda/hooks.h"
#include "launch.h"
#include "process.h"
#include "sleep_until.h"

struct known {
    struct timebase timebase;
    struct known *next;
    CUdevice device;
    unsigned endings;                   /* calls under way that may end it; with `ended` under the lock */
    bool ended;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     /* no call of the driver is made with it */
static struct known *_Atomic contexts;

void contexts_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    atomic_store(&contexts, NULL);
}

/* ---- the end ---- */

/* Who measures says where first, and looks then whether it is still there (harvest.c). */
static void wait_for_harvests(const struct timebase *timebase)
{
    uint64_t began = 0;
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        struct limiter *limiter = atomic_load_explicit(&compute_limiters[i], memory_order_acquire);
        while (limiter != NULL && atomic_load(&limiter->inside) == timebase && sleep_again(&began))
            ;
    }
}

static void turn(struct known *known, enum context_fate fate)
{
    if (fate == CONTEXT_ENDING)
        known->endings++;
    else if (known->endings > 0)
        known->endings--;
    known->ended = known->ended || fate == CONTEXT_GONE;
    atomic_store(&known->timebase.gone, known->ended || known->endings > 0);
}

static bool is_meant(const struct known *known, CUdevice device, CUcontext context)
{
    return context == NULL ? known->device == device : known->timebase.context == context;
}

void contexts_end(CUdevice device, CUcontext context, enum context_fate fate)
{
    struct known *first = atomic_load_explicit(&contexts, memory_order_acquire);
    pthread_mutex_lock(&lock);
    for (struct known *known = first; known != NULL; known = known->next) {
        if (is_meant(known, device, context) && !known->ended)
            turn(known, fate);
    }
    pthread_mutex_unlock(&lock);
    if (fate == CONTEXT_ENDING)
        atomic_fetch_add(&compute_streams_ended, 1);    /* those of a green context, too, which the primary one outlives */
    for (struct known *known = first; known != NULL && fate == CONTEXT_ENDING; known = known->next) {
        if (is_meant(known, device, context)) {
            wait_for_harvests(&known->timebase);
            in_flight_wait_context(&known->timebase);
        }
    }
    if (fate != CONTEXT_GONE)
        return;
    captures_end_in(device, context);
    atomic_fetch_add(&compute_generation, 1);
}

/* ---- where a stream belongs ---- */

/* Its owner holds it while it launches: our release is not the last. */
static CUcontext primary_of(CUdevice device)
{
    CUcontext primary = NULL;
    if (device == CU_DEVICE_INVALID || DRIVER(cuDevicePrimaryCtxRetain, &primary, device) != CUDA_SUCCESS)
        return NULL;
    if (HAS(cuDevicePrimaryCtxRelease_v2))
        DRIVER(cuDevicePrimaryCtxRelease_v2, device);
    else
        DRIVER(cuDevicePrimaryCtxRelease, device);
    return primary;
}

/* What cuStreamGetCtx says of a green stream is the green context. The second version (12.5) tells them apart, CUDA 12.4 has a question of its own. */
static CUcontext context_of(CUstream stream)
{
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    if (HAS(cuStreamGetCtx_v2))
        return DRIVER(cuStreamGetCtx_v2, stream, &context, &green) == CUDA_SUCCESS ? context : NULL;
    if (HAS(cuStreamGetGreenCtx) && DRIVER(cuStreamGetGreenCtx, stream, &green) == CUDA_SUCCESS && green != NULL)
        return primary_of(context_green_device(green));
    if (HAS(cuStreamGetCtx))
        return DRIVER(cuStreamGetCtx, stream, &context) == CUDA_SUCCESS ? context : NULL;
    return DRIVER(cuCtxGetCurrent, &context) == CUDA_SUCCESS ? context : NULL;
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

bool contexts_place(CUstream stream, struct place *place)
{
    place->context = context_of(stream);
    place->device = place->context == NULL ? CU_DEVICE_INVALID : device_of(place->context);
    return place->device != CU_DEVICE_INVALID;
}

static struct known *find_context(CUcontext context)
{
    struct known *known = atomic_load_explicit(&contexts, memory_order_acquire);
    while (known != NULL && (known->timebase.context != context || known->ended))
        known = known->next;
    return known;
}

static struct known *add_context(const struct place *place)
{
    struct known *added = calloc(1, sizeof *added);
    if (added == NULL)
        return NULL;
    timebase_init(&added->timebase, &compute_driver, place->context);
    added->device = place->device;
    added->next = atomic_load(&contexts);
    atomic_store_explicit(&contexts, added, memory_order_release);
    return added;
}

static struct timebase *timebase_of(const struct place *place)
{
    pthread_mutex_lock(&lock);
    struct known *known = find_context(place->context);
    if (known == NULL)
        known = add_context(place);
    pthread_mutex_unlock(&lock);
    return known == NULL ? NULL : &known->timebase;
}

struct belonging compute_belonging(CUstream stream)
{
    struct place place;
    struct belonging belonging = {false, NULL, NULL};
    if (!contexts_place(stream, &place))
        return belonging;
    belonging.limiter = compute_limiter(place.device, &belonging.known);
    if (belonging.limiter == NULL)
        return belonging;
    belonging.timebase = timebase_of(&place);
    belonging.known = belonging.timebase != NULL;
    return belonging;
}
