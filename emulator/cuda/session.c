/* See session.h. */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../shared/derive.h"
#include "context.h"
#include "entry.h"
#include "gpu_lock.h"
#include "usage.h"

enum { CONTEXT_MIB = 500 };

struct driver driver;
_Atomic int session_state;
unsigned slot_own;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool claimed;        /* guarded by `opening` */

/* What the parent had is not the child's; a child of a process without CUDA begins fresh. */
static void after_fork_in_child(void)
{
    if (atomic_load(&session_state) != SESSION_NONE)
        atomic_store(&session_state, SESSION_FORKED);
}

CUresult session_error(void)
{
    return CUDA_ERROR_NOT_INITIALIZED;
}

/* Once: a process that calls cuInit again gets the message one time only. */
static void complain(const struct fault *fault)
{
    static char last[sizeof fault->text];
    if (fault->text[0] == '\0' || strcmp(last, fault->text) == 0)
        return;
    strcpy(last, fault->text);
    fprintf(stderr, "vcuda-emulator: %s\n", fault->text);
}

static CUresult driver_error(const struct shared_state *state)
{
    switch (atomic_load(&state->driver_state)) {
    case DRIVER_UNLOADED:
        return CUDA_ERROR_NO_DEVICE;
    case DRIVER_MISMATCH:
        return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    default:
        return CUDA_SUCCESS;
    }
}

static bool number_given(const char *variable, uint64_t *number)
{
    const char *given = getenv(variable);
    char *end = NULL;
    *number = given == NULL ? 0 : strtoull(given, &end, 10);
    return given != NULL && *given != '\0' && *end == '\0';
}

static uint64_t bytes_given(const char *variable, uint64_t otherwise)
{
    uint64_t mib;
    return number_given(variable, &mib) ? mib << 20 : otherwise;
}

static int first_numa(void)
{
    uint64_t number;
    return number_given("VCUDA_EMULATOR_GPU_NUMA", &number) && number < INT32_MAX / 2 ? (int)number : -1;
}

static CUresult attach(void)
{
    struct fault fault = {{0}, false};
    if (driver.machine.state != NULL && !state_is_current(&driver.machine, &driver.paths))
        state_detach(&driver.machine);
    if (driver.machine.state != NULL)
        return CUDA_SUCCESS;
    if (!state_find_paths(&driver.paths, &fault) || !state_attach(&driver.machine, &driver.paths, &fault)) {
        complain(&fault);
        return fault.absent ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_UNKNOWN;
    }
    driver.section = cuda_section(&driver.machine);
    driver.pids = pids_open(driver.paths.state, true);
    if (driver.machine.writable && driver.pids >= 0)
        return CUDA_SUCCESS;
    fault_set(&fault, "%s: cannot be written: CUDA processes need the state and \"<state>.pids\"", driver.paths.state);
    complain(&fault);
    state_detach(&driver.machine);
    return CUDA_ERROR_NO_DEVICE;
}

static CUresult begin(void)
{
    unsigned positions[MAX_GPUS];
    CUresult error = attach();
    if (error == CUDA_SUCCESS)
        error = driver_error(driver.machine.state);
    if (error != CUDA_SUCCESS)
        return error;
    driver.count = visible_positions(&driver.machine, positions);
    if (driver.count == 0)
        return CUDA_ERROR_NO_DEVICE;
    driver.cuda = (int)driver.machine.state->cuda;
    driver.context_bytes = bytes_given("VCUDA_EMULATOR_CONTEXT_MIB", (uint64_t)CONTEXT_MIB << 20);
    driver.further_bytes = bytes_given("VCUDA_EMULATOR_FURTHER_CONTEXT_MIB", driver.context_bytes / 4);
    driver.first_numa = first_numa();
    driver.hmm = getenv("VCUDA_EMULATOR_HMM") != NULL;
    for (int i = 0; i < driver.count; i++)
        gpu_prepare(&driver.gpus[i], i, positions[i]);
    pthread_atfork(NULL, NULL, after_fork_in_child);
    atomic_store(&session_state, SESSION_READY);
    return CUDA_SUCCESS;
}

ENTRY(cuInit)(unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&session_state) == SESSION_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&opening);
    if (atomic_load(&session_state) != SESSION_READY)
        error = begin();
    pthread_mutex_unlock(&opening);
    return error;
}

/* Known without initialisation: it is the library's own number. */
ENTRY(cuDriverGetVersion)(int *driver_version)
{
    if (driver_version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&opening);
    if (driver.machine.state == NULL)
        error = attach();
    if (error == CUDA_SUCCESS)
        *driver_version = (int)driver.machine.state->cuda;
    pthread_mutex_unlock(&opening);
    return error;
}

static bool lock_byte(unsigned slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(driver.pids, F_SETLK, &lock) == 0;
}

/* The same process through another copy of this library: record locks do not exclude it. */
static bool is_ours_already(const struct cuda_process *process)
{
    return atomic_load(&process->pid) == (uint32_t)getpid() && atomic_load(&process->pid_namespace) == own_pid_namespace() &&
           atomic_load(&process->image) == own_image();
}

static void read_name(char *name, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", name, size - 1);
    name[length < 0 ? 0 : length] = '\0';
}

static void move_in(unsigned slot)
{
    struct cuda_process *process = &driver.section->processes[slot];
    atomic_store(&process->pid_namespace, 0);
    slot_own = slot;
    for (unsigned i = 0; i < driver.machine.state->gpu_count; i++) {
        struct cuda_gpu *gpu = &driver.section->gpus[i];
        gpu_lock_inherit(gpu, slot);
        gpu_lock(gpu);
        timeline_advance(&gpu->timeline, clock_ns());
        gpu_reap_slot(gpu, slot);
        timeline_reset(&gpu->timeline, slot);
        gpu_unlock(gpu);
    }
    atomic_store(&process->pid, (uint32_t)getpid());
    atomic_store(&process->outer_pid, 0);
    atomic_store(&process->image, own_image());
    read_name(process->name, sizeof process->name);
    atomic_store(&process->pid_namespace, own_pid_namespace());
}

static bool claim(void)
{
    for (unsigned slot = 0; slot < CUDA_SLOTS; slot++) {
        if (is_ours_already(&driver.section->processes[slot]) || !lock_byte(slot))
            continue;
        uint32_t high = atomic_load(&driver.section->slot_high);
        while (high <= slot && !atomic_compare_exchange_weak(&driver.section->slot_high, &high, slot + 1))
            ;
        move_in(slot);
        return true;
    }
    return false;
}

bool slot_claim(void)
{
    static _Atomic bool done;
    if (atomic_load_explicit(&done, memory_order_acquire))
        return true;
    pthread_mutex_lock(&opening);
    if (!claimed)
        claimed = claim();
    atomic_store_explicit(&done, claimed, memory_order_release);
    pthread_mutex_unlock(&opening);
    return claimed;
}

int device_count(void)
{
    return driver.count;
}

bool device_valid(CUdevice device)
{
    return device >= 0 && device < driver.count;
}

unsigned device_slot(CUdevice device)
{
    return driver.gpus[device].position;
}

const char *state_path(void)
{
    return driver.paths.state;
}
