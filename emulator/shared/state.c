/*
 * The state file: attach, make, replace.
 *
 * Invariant: a file under the state's name is complete. It is filled under a name of its own and then linked (first come, first
 * served) or renamed (reset) into place, so no process ever maps half a state, whichever process dies, and when.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lock.h"
#include "profile.h"

enum { TEMPORARY_SIZE = STATE_PATH_SIZE + 8 };

static bool fail_path(struct fault *fault, const char *path, const char *what)
{
    fault_set(fault, "%s: %s: %s", path, what, strerror(errno));
    return false;
}

static bool check_header(const struct shared_state *state, size_t size, const char *path, struct fault *fault)
{
    if (state->magic != LAYOUT_MAGIC)
        fault_set(fault, "%s: not a state file of the emulated driver", path);
    else if (state->layout_version != LAYOUT_VERSION || state->header_size != sizeof *state)
        fault_set(fault, "%s: made by another version of the emulated driver (layout %u, here %d); run 'vcuda-emulator init'", path,
                  state->layout_version, LAYOUT_VERSION);
    else if (state->total_size != size || size < sizeof(struct machine_image) || state->gpu_count > MAX_GPUS ||
             state->gpu_offset != offsetof(struct machine_image, gpus) || state->gpu_stride != sizeof(struct shared_gpu) ||
             state->extension_offset != offsetof(struct machine_image, cuda) || state->extension_size != sizeof(struct cuda_section))
        fault_set(fault, "%s: the state file is damaged; run 'vcuda-emulator init'", path);
    else
        return true;
    return false;
}

static bool map_file(struct machine *machine, int fd, const char *path, struct fault *fault)
{
    struct stat found;
    if (fstat(fd, &found) != 0)
        return fail_path(fault, path, "cannot be read");
    if (found.st_size < (off_t)sizeof(struct shared_state)) {
        fault_set(fault, "%s: not a state file of the emulated driver", path);
        return false;
    }
    size_t size = (size_t)found.st_size;
    void *mapped = mmap(NULL, size, machine->writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return fail_path(fault, path, "cannot be mapped");
    if (!check_header(mapped, size, path, fault)) {
        munmap(mapped, size);
        return false;
    }
    machine->state = mapped;
    machine->size = size;
    machine->device = found.st_dev;
    machine->inode = found.st_ino;
    return true;
}

/* errno is ENOENT where there is no state yet. */
static bool open_state(struct machine *machine, const char *path, int *fd, struct fault *fault)
{
    machine->writable = true;
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM)) {
        machine->writable = false;
        *fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (*fd < 0) {
        if (errno != ENOENT)
            fail_path(fault, path, "cannot be opened");
        return false;
    }
    if (map_file(machine, *fd, path, fault))
        return true;
    close(*fd);
    errno = EINVAL;
    return false;
}

static bool fill_file(int fd, const struct state_paths *paths, struct fault *fault)
{
    size_t size = sizeof(struct machine_image);
    if (ftruncate(fd, (off_t)size) != 0)
        return fail_path(fault, paths->state, "cannot be written");
    struct machine_image *image = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (image == MAP_FAILED)
        return fail_path(fault, paths->state, "cannot be mapped");
    bool done = profile_load(paths->profile, image, fault);
    munmap(image, size);
    return done;
}

/* A complete state under a name of its own, in `temporary`. */
static bool make_file(const struct state_paths *paths, char *temporary, struct fault *fault)
{
    if (paths->profile[0] == '\0') {
        fault_set(fault, "%s: no such state, and VCUDA_EMULATOR_PROFILE names no profile to make it from", paths->state);
        fault->absent = true;
        return false;
    }
    snprintf(temporary, TEMPORARY_SIZE, "%s.XXXXXX", paths->state);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return fail_path(fault, paths->state, "cannot be made");
    /* Like a GPU's device node: all processes that reach it may use it. */
    bool done = fchmod(fd, 0666) == 0 && fill_file(fd, paths, fault);
    close(fd);
    if (!done)
        unlink(temporary);
    return done;
}

static bool make_state(const struct state_paths *paths, struct fault *fault)
{
    char temporary[TEMPORARY_SIZE];
    if (!make_file(paths, temporary, fault))
        return false;
    bool done = link(temporary, paths->state) == 0 || errno == EEXIST || fail_path(fault, paths->state, "cannot be made");
    unlink(temporary);
    return done;
}

static bool check_profile(const struct machine *machine, const struct state_paths *paths, struct fault *fault)
{
    struct fault unreadable = {{0}};
    uint64_t hash;
    if (paths->profile[0] == '\0' || !profile_hash(paths->profile, &hash, &unreadable) || hash == machine->state->profile_hash)
        return true;
    fault_set(fault, "%s: made from another profile than %s; run 'vcuda-emulator init'", paths->state, paths->profile);
    return false;
}

bool state_attach(struct machine *machine, const struct state_paths *paths, struct fault *fault)
{
    int fd;
    memset(machine, 0, sizeof *machine);
    if (!open_state(machine, paths->state, &fd, fault)) {
        if (errno != ENOENT || !make_state(paths, fault))
            return false;
        if (!open_state(machine, paths->state, &fd, fault)) {
            fault_set(fault, "%s: vanished while it was opened", paths->state);
            return false;
        }
    }
    if (!check_profile(machine, paths, fault)) {
        close(fd);
        state_detach(machine);
        return false;
    }
    if (!machine->writable) {
        close(fd);
        fd = -1;
    }
    lock_adopt(fd);
    return true;
}

bool state_reset(const struct state_paths *paths, struct fault *fault)
{
    char temporary[TEMPORARY_SIZE];
    struct machine old = {0};
    struct fault ignored = {{0}};
    int fd;
    if (!make_file(paths, temporary, fault))
        return false;
    bool had_old = open_state(&old, paths->state, &fd, &ignored);
    bool done = rename(temporary, paths->state) == 0 || fail_path(fault, paths->state, "cannot be replaced");
    if (!done)
        unlink(temporary);
    if (had_old) {
        if (done && old.writable) {
            atomic_store(&old.state->superseded, 1);
            state_ring(old.state);
        }
        close(fd);
        state_detach(&old);
    }
    return done;
}

bool state_is_current(const struct machine *machine, const struct state_paths *paths)
{
    struct stat found;
    return machine->state != NULL && atomic_load(&machine->state->superseded) == 0 && stat(paths->state, &found) == 0 &&
           found.st_dev == machine->device && found.st_ino == machine->inode;
}

void state_detach(struct machine *machine)
{
    if (machine->state != NULL)
        munmap(machine->state, machine->size);
    memset(machine, 0, sizeof *machine);
}

struct shared_gpu *state_gpu(const struct machine *machine, unsigned slot)
{
    return &((struct machine_image *)machine->state)->gpus[slot];
}
