/*
 * Interprocess events ("CUDA Driver API, Memory Management": cuIpcGetEventHandle, cuIpcOpenEventHandle).
 *
 * All processes of a GPU share its V, so the event is one number in the shared state. A handle names its place there. An event whose process
 * ended, or that was destroyed, is over for everybody.
 */
#include <string.h>

#include "entry.h"
#include "event.h"
#include "gpu_lock.h"
#include "lock.h"
#include "session.h"

#define HANDLE_MARK UINT64_C(0x544e455645435556)

struct handle {
    uint64_t mark, id;
    uint32_t position, place;
};

static bool place_is_live(const struct cuda_place *place)
{
    unsigned slot = (unsigned)atomic_load(&place->slot);
    return atomic_load(&place->id) != 0 && (slot == slot_own || occupant_lives(driver.section, driver.pids, slot, NULL));
}

void event_pull(struct event *event)
{
    if (event->place == NULL)
        return;
    event->v = atomic_load(&event->place->v);
    if (event->opened)
        event->recorded = event->placed = 1;
    if (event->v > event->gpu->v && (atomic_load(&event->place->id) != event->place_id || !place_is_live(event->place)))
        event->v = 0;
}

void event_push(struct event *event)
{
    if (event->place != NULL && atomic_load(&event->place->id) == event->place_id)
        atomic_store(&event->place->v, event->v);
}

void event_unshare(struct event *event)
{
    if (event->place != NULL && !event->opened && atomic_load(&event->place->id) == event->place_id)
        atomic_store(&event->place->id, 0);
    event->place = NULL;
}

/* Under the GPU's lock. */
static struct cuda_place *take_place(struct cuda_gpu *gpu)
{
    for (unsigned i = 0; i < CUDA_PLACES; i++) {
        if (!place_is_live(&gpu->places[i]))
            return &gpu->places[i];
    }
    return NULL;
}

static CUresult share(struct event *event)
{
    struct cuda_gpu *gpu = event->gpu->shared;
    gpu_lock(gpu);
    struct cuda_place *place = take_place(gpu);
    if (place != NULL) {
        event->place_id = atomic_fetch_add(&gpu->last_place, 1) + 1;
        atomic_store(&place->id, 0);
        atomic_store(&place->slot, slot_own);
        atomic_store(&place->v, event->v);
        atomic_store(&place->id, event->place_id);
        event->place = place;
    }
    gpu_unlock(gpu);
    return place == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuIpcGetEventHandle)(CUipcEventHandle *out, CUevent handle)
{
    struct event *event = event_of(handle);
    CUresult error = CUDA_SUCCESS;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (event == NULL || (event->flags & CU_EVENT_INTERPROCESS) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    if (event->place == NULL)
        error = share(event);
    if (error == CUDA_SUCCESS) {
        struct handle named = {HANDLE_MARK, event->place_id, event->gpu->position, (uint32_t)(event->place - event->gpu->shared->places)};
        memset(out, 0, sizeof *out);
        memcpy(out, &named, sizeof named);
    }
    driver_unlock();
    return error;
}

static struct gpu *gpu_at(unsigned position)
{
    for (int i = 0; i < driver.count; i++) {
        if (driver.gpus[i].position == position)
            return &driver.gpus[i];
    }
    return NULL;
}

ENTRY(cuIpcOpenEventHandle)(CUevent *out, CUipcEventHandle given)
{
    struct context *context;
    struct handle named;
    CUresult error = context_require(&context);
    if (error != CUDA_SUCCESS)
        return error;
    memcpy(&named, &given, sizeof named);
    struct gpu *gpu = named.mark == HANDLE_MARK ? gpu_at(named.position) : NULL;
    if (out == NULL || gpu == NULL || named.place >= CUDA_PLACES)
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_place *place = &gpu->shared->places[named.place];
    if (atomic_load(&place->id) != named.id)
        return CUDA_ERROR_INVALID_HANDLE;
    struct event *event = event_make(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->gpu = gpu;
    event->place = place;
    event->place_id = named.id;
    event->opened = true;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}
