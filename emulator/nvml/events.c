/*
 * Event sets: registration and waiting.
 *
 * Every set remembers how far in the shared ring it has read, so each event reaches each set once, in order, and events from
 * before a GPU was registered never do. Waiting sleeps on the state's doorbell. A set that is freed while a thread waits on it
 * lives until the wait ends.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "session.h"

enum { SUPPORTED = nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState |
                   nvmlEventTypeXidCriticalError | nvmlEventTypeClock | nvmlEventMigConfigChange };

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    unsigned users;                     /* the creator and those who wait */
    const struct session *session;      /* of its registrations */
    uint64_t read;                      /* events up to here were delivered or passed over */
    uint64_t types[MAX_GPUS];           /* 0: not registered */
    uint64_t since[MAX_GPUS];           /* the ring's head when the GPU was registered */
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st *sets;    /* guarded by `guard`, like every set's content */

/* Known and not freed? A wrong pointer must not be followed. */
static bool is_known(nvmlEventSet_t set)
{
    const struct nvmlEventSet_st *known = sets;
    while (known != NULL && known != set)
        known = known->next;
    return known != NULL;
}

static void release(nvmlEventSet_t set)
{
    if (--set->users == 0)
        free(set);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    CURRENT(session);
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct nvmlEventSet_st *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NVML_ERROR_MEMORY;
    made->users = 1;
    pthread_mutex_lock(&guard);
    made->next = sets;
    sets = made;
    pthread_mutex_unlock(&guard);
    *set = made;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    const struct session *session;
    nvmlReturn_t error = session_current(&session);
    pthread_mutex_lock(&guard);
    struct nvmlEventSet_st **link = &sets;
    while (*link != NULL && *link != set)
        link = &(*link)->next;
    if (*link == NULL) {
        error = error == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : error;
    } else {
        *link = set->next;
        release(set);
    }
    pthread_mutex_unlock(&guard);
    return error;
}

/* Registrations of an earlier session mean GPUs that are no more. */
static void adopt_session(nvmlEventSet_t set, const struct session *session)
{
    if (set->session == session)
        return;
    set->session = session;
    set->read = 0;
    for (unsigned slot = 0; slot < MAX_GPUS; slot++)
        set->types[slot] = 0;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    nvmlReturn_t result = NVML_SUCCESS;
    OPEN(v, device, set);
    if ((types & ~(unsigned long long)SUPPORTED) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&guard);
    if (!is_known(set)) {
        result = NVML_ERROR_INVALID_ARGUMENT;
    } else {
        adopt_session(set, v.session);
        if (set->types[v.slot] == 0)
            set->since[v.slot] = atomic_load(&v.session->machine.state->event_head);
        set->types[v.slot] |= types;
    }
    pthread_mutex_unlock(&guard);
    return result;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    OPEN(v, device, types);
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

static bool wants(const struct nvmlEventSet_st *set, uint64_t sequence, uint32_t gpu, uint64_t type)
{
    return gpu < MAX_GPUS && (set->types[gpu] & type) != 0 && sequence > set->since[gpu];
}

/* The set's next event in the ring, if there is one. */
static bool take_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    const struct shared_state *state = set->session->machine.state;
    uint64_t head = atomic_load(&state->event_head);
    if (head - set->read > MAX_EVENTS)
        set->read = head - MAX_EVENTS; /* overwritten before they were read */
    while (set->read < head) {
        uint64_t sequence = ++set->read;
        const struct shared_event *event = &state->events[sequence % MAX_EVENTS];
        uint32_t gpu = atomic_load(&event->gpu);
        uint64_t type = atomic_load(&event->type), value = atomic_load(&event->data);
        if (atomic_load(&event->sequence) != sequence || !wants(set, sequence, gpu, type))
            continue;
        *data = (nvmlEventData_t){device_handle(gpu), type, value, ~0u, ~0u};
        return true;
    }
    return false;
}

/* A GPU of the set that fell off the bus in the way that makes waiting fail. */
static bool waiting_fails(const struct nvmlEventSet_st *set)
{
    struct gpu_status status;
    const struct machine *machine = &set->session->machine;
    for (unsigned slot = 0; slot < machine->state->gpu_count; slot++) {
        if (set->types[slot] == 0)
            continue;
        state_read(state_gpu(machine, slot), &status);
        if (status.presence != PRESENT && status.wait_error != 0)
            return true;
    }
    return false;
}

/* One look at the ring; TIMEOUT where there is nothing yet. */
static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *data)
{
    nvmlReturn_t result = NVML_ERROR_TIMEOUT;
    pthread_mutex_lock(&guard);
    if (set->session != NULL && take_event(set, data))
        result = NVML_SUCCESS;
    else if (set->session != NULL && waiting_fails(set))
        result = NVML_ERROR_GPU_IS_LOST;
    pthread_mutex_unlock(&guard);
    return result;
}

static bool time_left(const struct timespec *deadline, struct timespec *left)
{
    enum { NS = 1000000000 };
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    left->tv_sec = deadline->tv_sec - now.tv_sec;
    left->tv_nsec = deadline->tv_nsec - now.tv_nsec;
    if (left->tv_nsec < 0) {
        left->tv_nsec += NS;
        left->tv_sec--;
    }
    return left->tv_sec > 0 || (left->tv_sec == 0 && left->tv_nsec > 0);
}

static struct timespec deadline_in(unsigned int timeout)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout / 1000;
    deadline.tv_nsec += (long)(timeout % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_nsec -= 1000000000;
        deadline.tv_sec++;
    }
    return deadline;
}

static nvmlReturn_t wait_event(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    struct timespec deadline = deadline_in(timeout), left;
    for (;;) {
        const struct session *session;
        nvmlReturn_t result = session_current(&session);
        if (result != NVML_SUCCESS)
            return result;
        /* Before the look: a ring between the look and the sleep ends the sleep at once. */
        uint32_t seen = atomic_load(&session->machine.state->doorbell);
        result = look(set, data);
        if (result != NVML_ERROR_TIMEOUT || !time_left(&deadline, &left))
            return result;
        state_wait_ring(session->machine.state, seen, &left);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    CURRENT(session);
    if (set == NULL || data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&guard);
    bool known = is_known(set);
    if (known)
        set->users++;
    pthread_mutex_unlock(&guard);
    if (!known)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = wait_event(set, data, timeout);
    pthread_mutex_lock(&guard);
    release(set);
    pthread_mutex_unlock(&guard);
    return result;
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    return nvmlEventSetWait_v2(set, data, timeout);
}
