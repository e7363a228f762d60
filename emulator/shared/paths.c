/* Where the profile and the state are: from the environment, with a default for the state that the profile decides. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "profile.h"
#include "state.h"

static bool copy_path(char *to, const char *from, const char *variable, struct fault *fault)
{
    if (strlen(from) >= STATE_PATH_SIZE) {
        fault_set(fault, "%s is longer than %d bytes", variable, STATE_PATH_SIZE - 1);
        return false;
    }
    strcpy(to, from);
    return true;
}

/* The directory must belong to this user alone: in /tmp another user can create it first. */
static bool make_private(const char *directory, struct fault *fault)
{
    struct stat found;
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
        fault_set(fault, "%s: cannot be made: %s", directory, strerror(errno));
        return false;
    }
    if (lstat(directory, &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
        fault_set(fault, "%s: not a directory of this user alone; set VCUDA_EMULATOR_STATE", directory);
        return false;
    }
    return true;
}

static bool default_state(struct state_paths *paths, struct fault *fault)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char directory[STATE_PATH_SIZE / 2], absolute[STATE_PATH_SIZE];
    uint64_t hash;
    int length;
    if (!profile_hash(paths->profile, &hash, fault))
        return false;
    if (realpath(paths->profile, absolute) == NULL) {
        fault_set(fault, "%s: %s", paths->profile, strerror(errno));
        return false;
    }
    if (runtime != NULL && runtime[0] == '/' && access(runtime, W_OK | X_OK) == 0)
        length = snprintf(directory, sizeof directory, "%s/vcuda-emulator", runtime);
    else
        length = snprintf(directory, sizeof directory, "/tmp/vcuda-emulator-%u", (unsigned)geteuid());
    if (length >= (int)sizeof directory) {
        fault_set(fault, "XDG_RUNTIME_DIR is too long; set VCUDA_EMULATOR_STATE");
        return false;
    }
    hash = hash_bytes(hash, absolute, strlen(absolute));
    snprintf(paths->state, sizeof paths->state, "%s/%016llx.state", directory, (unsigned long long)hash);
    return make_private(directory, fault);
}

bool state_find_paths(struct state_paths *paths, struct fault *fault)
{
    const char *profile = getenv("VCUDA_EMULATOR_PROFILE"), *state = getenv("VCUDA_EMULATOR_STATE");
    paths->profile[0] = paths->state[0] = '\0';
    if (profile != NULL && !copy_path(paths->profile, profile, "VCUDA_EMULATOR_PROFILE", fault))
        return false;
    if (state != NULL && state[0] != '\0')
        return copy_path(paths->state, state, "VCUDA_EMULATOR_STATE", fault);
    if (paths->profile[0] == '\0') {
        fault_set(fault, "neither VCUDA_EMULATOR_PROFILE nor VCUDA_EMULATOR_STATE names a file");
        fault->absent = true;
        return false;
    }
    return default_state(paths, fault);
}
