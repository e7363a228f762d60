/* See occupants.h. A view of a GPU is a private copy of its timeline, advanced to now: who looks owns no slot and takes no lock. */
#include "occupants.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "derive.h"

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static char opened_path[STATE_PATH_SIZE];
static int opened_fd = -1;

struct cuda_section *cuda_section(const struct machine *machine)
{
    return (struct cuda_section *)((char *)machine->state + machine->state->extension_offset);
}

uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static int open_file(const char *state_path, bool make)
{
    char path[STATE_PATH_SIZE + 8];
    snprintf(path, sizeof path, "%s.pids", state_path);
    int fd = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0666);
    if (fd >= 0 && make)
        (void)!fchmod(fd, 0666); /* despite the umask: all processes that reach the state may use it */
    else if (fd < 0)
        fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd;
}

int pids_open(const char *state_path, bool make)
{
    pthread_mutex_lock(&opening);
    if (opened_fd < 0 || strcmp(opened_path, state_path) != 0) {
        opened_fd = open_file(state_path, make); /* another state's stays open: its lock must not be lost */
        snprintf(opened_path, sizeof opened_path, "%s", state_path);
    }
    int fd = opened_fd;
    pthread_mutex_unlock(&opening);
    return fd;
}

/* A process never sees its own lock, wherever in it the lock was taken; what the program before exec left has none. */
static bool is_own(const struct cuda_process *process)
{
    return atomic_load(&process->pid) == (uint32_t)getpid() && atomic_load(&process->pid_namespace) == own_pid_namespace() &&
           atomic_load(&process->image) == own_image();
}

static void learn_outer_pid(struct cuda_process *process, uint32_t pid, bool writable)
{
    if (writable && pid != 0 && atomic_load(&process->pid_namespace) != own_pid_namespace())
        atomic_store(&process->outer_pid, pid);
}

static bool look(struct cuda_section *section, int pids, unsigned slot, bool writable, uint32_t *pid)
{
    struct cuda_process *process = &section->processes[slot];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    uint32_t ignored;
    pid = pid == NULL ? &ignored : pid;
    *pid = 0;
    if (atomic_load(&process->pid_namespace) == 0)
        return false;
    if (is_own(process)) {
        *pid = atomic_load(&process->pid);
        return true;
    }
    if (fcntl(pids, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)
        return false;
    *pid = lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0;
    learn_outer_pid(process, *pid, writable);
    return true;
}

bool occupant_lives(struct cuda_section *section, int pids, unsigned slot, uint32_t *pid)
{
    return look(section, pids, slot, false, pid);
}

/* The state of the clock without the points, which only times in the past need. */
static struct timeline *copy_timeline(const struct timeline *timeline)
{
    struct timeline *copy = calloc(1, sizeof *copy);
    uint64_t version;
    if (copy == NULL)
        return NULL;
    do {
        version = atomic_load(&timeline->version);
        copy->now[0] = copy->now[1] = timeline->now[version & 1];
        uint32_t high = atomic_load(&timeline->slot_high);
        atomic_store(&copy->slot_high, high);
        copy->busy_ns = timeline->busy_ns;
        memcpy(copy->samples, timeline->samples, sizeof copy->samples);
        for (unsigned i = 0; i < high && i < TIMELINE_SLOTS; i++) {
            atomic_store(&copy->slots[i].end, atomic_load(&timeline->slots[i].end));
            copy->slots[i].got_ns = timeline->slots[i].got_ns;
            memcpy(copy->slots[i].samples, timeline->slots[i].samples, sizeof copy->slots[i].samples);
        }
        atomic_thread_fence(memory_order_acquire);
    } while (atomic_load(&timeline->version) != version);
    return copy;
}

static void fill(struct occupant *occupant, const struct cuda_section *section, const struct cuda_gpu *gpu, unsigned slot)
{
    const struct cuda_process *process = &section->processes[slot];
    uint32_t outer = atomic_load(&process->outer_pid);
    occupant->slot = slot;
    occupant->outer_pid = outer != 0 ? outer : atomic_load(&process->pid);
    occupant->bytes = atomic_load(&gpu->use[slot].bytes);
    occupant->contexts = atomic_load(&gpu->use[slot].contexts);
    memcpy(occupant->name, process->name, sizeof occupant->name);
    occupant->name[sizeof occupant->name - 1] = '\0';
}

static void list_live(const struct machine *machine, int pids, unsigned gpu_number, unsigned high, struct timeline *timeline, struct occupancy *out)
{
    struct cuda_section *section = cuda_section(machine);
    struct cuda_gpu *gpu = &section->gpus[gpu_number];
    for (unsigned slot = 0; slot < high; slot++) {
        struct occupant *occupant = &out->occupants[out->count];
        bool has = atomic_load(&gpu->use[slot].bytes) != 0 || atomic_load(&gpu->use[slot].contexts) != 0;
        if (!has && !timeline_is_active(timeline, slot))
            continue;
        if (!look(section, pids, slot, machine->writable, &occupant->pid)) {
            timeline_forget(timeline, slot);
            continue;
        }
        fill(occupant, section, gpu, slot);
        out->bytes += occupant->bytes;
        out->count += has;
    }
}

static void measure(struct timeline *timeline, struct occupancy *out)
{
    uint64_t now = clock_ns();
    timeline_advance(timeline, now);
    for (unsigned i = 0; i < out->count; i++) {
        struct occupant *occupant = &out->occupants[i];
        const struct timeline_slot *slot = &timeline->slots[occupant->slot];
        occupant->got_ns = slot->got_ns;
        occupant->sixth_ns = timeline_busy(timeline, slot, now, 1);
        occupant->second_ns = timeline_busy(timeline, slot, now, 6);
    }
    out->sixth_ns = timeline_busy(timeline, NULL, now, 1);
    out->second_ns = timeline_busy(timeline, NULL, now, 6);
    out->busy_ns = timeline->busy_ns;
}

bool occupancy_read(const struct machine *machine, const char *state_path, unsigned gpu, struct occupancy *out)
{
    struct cuda_gpu *shared = &cuda_section(machine)->gpus[gpu];
    memset(out, 0, sizeof *out);
    unsigned high = atomic_load(&cuda_section(machine)->slot_high);
    high = high < CUDA_SLOTS ? high : CUDA_SLOTS;
    int pids = high == 0 ? -1 : pids_open(state_path, false);
    if (pids < 0)
        return true;
    struct timeline *timeline = copy_timeline(&shared->timeline);
    out->occupants = calloc(high, sizeof *out->occupants);
    bool done = timeline != NULL && out->occupants != NULL;
    if (done) {
        list_live(machine, pids, gpu, high, timeline, out);
        measure(timeline, out);
    }
    free(timeline);
    return done;
}

void occupancy_free(struct occupancy *occupancy)
{
    free(occupancy->occupants);
    occupancy->occupants = NULL;
}
