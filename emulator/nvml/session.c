/* See session.h. Also nvmlInit and nvmlShutdown, which count references as the real ones. */
#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../shared/clients.h"
#include "../shared/derive.h"
#include "../shared/occupants.h"
#include "delay.h"

static struct nvmlDevice_st handles[MAX_GPUS];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct session *newest;              /* guarded by `opening` */
static unsigned references;                 /* guarded by `opening` */
static int client = -1;                     /* guarded by `opening` */
static struct session *_Atomic current;     /* NULL: not initialised */

static nvmlReturn_t driver_error(const struct shared_state *state)
{
    switch (atomic_load(&state->driver_state)) {
    case DRIVER_UNLOADED:
        return NVML_ERROR_DRIVER_NOT_LOADED;
    case DRIVER_MISMATCH:
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    default:
        return NVML_SUCCESS;
    }
}

static nvmlReturn_t session_error(const struct session *session)
{
    const struct shared_state *state = session->machine.state;
    nvmlReturn_t error = driver_error(state);
    if (error == NVML_SUCCESS && (atomic_load(&state->superseded) != 0 || atomic_load(&state->driver_epoch) != atomic_load(&session->epoch)))
        error = NVML_ERROR_UNINITIALIZED;
    return error;
}

nvmlReturn_t session_current(const struct session **out)
{
    *out = atomic_load(&current);
    return *out == NULL ? NVML_ERROR_UNINITIALIZED : session_error(*out);
}

bool session_has(const struct session *session, unsigned slot, unsigned *index)
{
    uint32_t count = atomic_load(&session->count);
    for (*index = 0; *index < count; (*index)++) {
        if (atomic_load(&session->slots[*index]) == slot)
            return true;
    }
    return false;
}

nvmlDevice_t device_handle(unsigned slot)
{
    return &handles[slot];
}

nvmlReturn_t device_check(nvmlDevice_t device, const struct session **session, unsigned *slot)
{
    uintptr_t distance = (uintptr_t)device - (uintptr_t)handles;
    unsigned index;
    nvmlReturn_t error = session_current(session);
    if (error != NVML_SUCCESS)
        return error;
    if (device == NULL || distance % sizeof *device != 0 || distance / sizeof *device >= MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *slot = (unsigned)(distance / sizeof *device);
    return session_has(*session, *slot, &index) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t view_open(nvmlDevice_t device, struct view *view)
{
    nvmlReturn_t error = device_check(device, &view->session, &view->slot);
    if (error != NVML_SUCCESS)
        return error;
    session_has(view->session, view->slot, &view->index);
    view->gpu = state_gpu(&view->session->machine, view->slot);
    view->facts = &view->gpu->facts;
    state_read(view->gpu, &view->status);
    if (view->status.presence != PRESENT)
        return NVML_ERROR_GPU_IS_LOST;
    forget_dead(&view->status);
    show_occupants(&view->session->machine, view->session->paths.state, view->slot, &view->status);
    return NVML_SUCCESS;
}

nvmlReturn_t give_text(const char *text, char *out, unsigned int length)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* Once per cause: an agent that waits for its driver asks again and again. */
static void complain(const struct fault *fault)
{
    static char last[sizeof fault->text];
    if (strcmp(last, fault->text) == 0)
        return;
    strcpy(last, fault->text);
    fprintf(stderr, "vcuda-emulator: %s\n", fault->text);
}

static void enumerate(struct session *session)
{
    const struct machine *machine = &session->machine;
    uint32_t count = 0;
    struct gpu_status status;
    for (unsigned slot = 0; slot < machine->state->gpu_count; slot++) {
        handles[slot].slot = slot;
        state_read(state_gpu(machine, slot), &status);
        if (status.presence != REMOVED)
            atomic_store(&session->slots[count++], (uint8_t)slot);
    }
    atomic_store(&session->count, count);
    atomic_store(&session->epoch, atomic_load(&machine->state->driver_epoch));
}

static struct session *open_session(const struct state_paths *paths, struct fault *fault)
{
    if (newest != NULL && state_is_current(&newest->machine, paths))
        return newest;
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return NULL;
    if (!state_attach(&session->machine, paths, fault)) {
        free(session);
        return NULL;
    }
    session->paths = *paths;
    session->older = newest;
    newest = session;
    return session;
}

static nvmlReturn_t begin_session(void)
{
    struct state_paths paths;
    struct fault fault = {{0}, false};
    struct session *session = NULL;
    if (state_find_paths(&paths, &fault))
        session = open_session(&paths, &fault);
    if (session == NULL) {
        complain(&fault);
        return fault.absent ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_UNKNOWN;
    }
    nvmlReturn_t error = driver_error(session->machine.state);
    if (error == NVML_SUCCESS) {
        enumerate(session);
        atomic_store(&current, session);
    }
    return error;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    if ((flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&opening);
    half_delay();
    const struct session *session;
    if (references == 0 || session_current(&session) != NVML_SUCCESS)
        result = begin_session();
    if (result == NVML_SUCCESS && references++ == 0)
        client = clients_join(newest->paths.state);
    half_delay();
    pthread_mutex_unlock(&opening);
    return result;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&opening);
    if (references != 0 && --references == 0) {
        atomic_store(&current, NULL);
        clients_leave(client);
        client = -1;
    }
    pthread_mutex_unlock(&opening);
    return NVML_SUCCESS;    /* without a beginning too: Debian's drivers 470, 535, 550 and 555 */
}
