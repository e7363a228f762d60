/* See profile.h. */
#include "profile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

/* No compiled profile is larger. */
enum { MOST = sizeof(struct profile_header) + MAX_GPUS * (sizeof(struct profile_gpu) + MAX_PROCESSES * sizeof(struct gpu_process)) };

static bool read_all(int fd, char *bytes, size_t room, size_t *size)
{
    ssize_t got = 1;
    for (*size = 0; *size < room && got > 0; *size += got > 0 ? (size_t)got : 0)
        got = read(fd, bytes + *size, room - *size);
    return got >= 0;
}

static void *read_file(const char *path, size_t *size, struct fault *fault)
{
    struct stat found;
    char *bytes = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        fault_set(fault, "%.200s: cannot be opened: %s", path, strerror(errno));
        fault->absent = errno == ENOENT || errno == ENOTDIR;
        return NULL;
    }
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
        fault_set(fault, "%.200s: not a file", path);
    } else if ((bytes = malloc(MOST)) == NULL) {
        fault_set(fault, "%.200s: out of memory", path);
    } else if (!read_all(fd, bytes, MOST, size)) {
        fault_set(fault, "%.200s: cannot be read: %s", path, strerror(errno));
        free(bytes);
        bytes = NULL;
    }
    close(fd);
    return bytes;
}

bool profile_hash(const char *path, uint64_t *hash, struct fault *fault)
{
    size_t size;
    void *bytes = read_file(path, &size, fault);
    if (bytes == NULL)
        return false;
    *hash = hash_bytes(HASH_START, bytes, size);
    free(bytes);
    return true;
}

/* The sizes and counts only: the values are its maker's. */
static bool is_whole(const struct profile_header *profile, size_t size)
{
    const struct profile_gpu *gpus = (const struct profile_gpu *)(profile + 1);
    size_t processes = 0;
    if (size < sizeof *profile || profile->magic != PROFILE_MAGIC || profile->header_size != sizeof *profile ||
        profile->gpu_size != sizeof *gpus || profile->process_size != sizeof(struct gpu_process) || profile->gpu_count > MAX_GPUS ||
        profile->process_count > MAX_GPUS * MAX_PROCESSES || profile->node_count > MAX_NODES || profile->switch_count > MAX_SWITCHES ||
        size != sizeof *profile + profile->gpu_count * sizeof *gpus + profile->process_count * sizeof(struct gpu_process))
        return false;
    for (unsigned i = 0; i < profile->gpu_count; i++) {
        if (gpus[i].process_count > MAX_PROCESSES)
            return false;
        processes += gpus[i].process_count;
    }
    return processes == profile->process_count;
}

static void fill_machine(const struct profile_header *profile, struct shared_state *state)
{
    memcpy(state->name, profile->name, sizeof state->name);
    memcpy(state->driver, profile->driver, sizeof state->driver);
    memcpy(state->nodes, profile->nodes, sizeof state->nodes);
    memcpy(state->switches, profile->switches, sizeof state->switches);
    state->cuda = profile->cuda;
    state->gpu_count = profile->gpu_count;
    state->node_count = profile->node_count;
    state->switch_count = profile->switch_count;
}

static void fill_gpu(const struct profile_gpu *from, const struct gpu_process *processes, struct shared_gpu *gpu)
{
    gpu->facts = from->facts;
    gpu->status[0] = (struct gpu_status){
        .compute_mode = from->compute_mode,
        .persistence = from->persistence,
        .mig = from->mig,
        .mig_pending = from->mig,
        .ecc = from->facts.ecc,
        .ecc_pending = from->facts.ecc,
        .gpu_util = from->gpu_util,
        .memory_util = from->memory_util,
        .temperature_c = from->temperature_c,
        .power_w = from->power_w,
        .power_limit_w = from->facts.power_limit_w,
        .used_mib = from->used_mib,
        .energy_since_us = clock_us(),
        .process_count = from->process_count,
    };
    memcpy(gpu->status[0].processes, processes, from->process_count * sizeof *processes);
}

static void seal(struct shared_state *state, uint64_t hash)
{
    state->layout_version = LAYOUT_VERSION;
    state->header_size = sizeof *state;
    state->total_size = sizeof(struct machine_image);
    state->gpu_offset = offsetof(struct machine_image, gpus);
    state->gpu_stride = sizeof(struct shared_gpu);
    state->extension_offset = offsetof(struct machine_image, cuda);
    state->extension_size = sizeof(struct cuda_section);
    state->profile_hash = hash;
    state->created_us = clock_us();
    atomic_store(&state->driver_epoch, 1);
    state->magic = LAYOUT_MAGIC;
}

static void fill_image(const struct profile_header *profile, size_t size, struct machine_image *image)
{
    const struct profile_gpu *gpus = (const struct profile_gpu *)(profile + 1);
    const struct gpu_process *processes = (const struct gpu_process *)(gpus + profile->gpu_count);
    fill_machine(profile, &image->state);
    for (unsigned i = 0; i < profile->gpu_count; i++) {
        fill_gpu(&gpus[i], processes, &image->gpus[i]);
        processes += gpus[i].process_count;
    }
    seal(&image->state, hash_bytes(HASH_START, profile, size));
}

bool profile_load(const char *path, struct machine_image *image, struct fault *fault)
{
    size_t size;
    struct profile_header *profile = read_file(path, &size, fault);
    if (profile == NULL)
        return false;
    bool whole = is_whole(profile, size);
    if (whole)
        fill_image(profile, size, image);
    else
        fault_set(fault, "%.200s: not a compiled profile; python -m sandbox.emulator_profile makes one from JSON", path);
    free(profile);
    return whole;
}
