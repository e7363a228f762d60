/*
 * The shared state: finding or making the file, reading it, changing it.
 *
 * Readers take no lock and are never held up by a process that died. Writers exclude each other by an open-file-description lock,
 * which the kernel drops when its holder dies, in any pid namespace, and which leaves no trace in the file.
 * Nothing here knows NVML or prints.
 */
#ifndef VCUDA_EMULATOR_STATE_H
#define VCUDA_EMULATOR_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "../fault.h"
#include "layout.h"

enum { STATE_PATH_SIZE = 4096 };

struct state_paths {
    char profile[STATE_PATH_SIZE];  /* empty: none named */
    char state[STATE_PATH_SIZE];
};

struct machine {
    struct shared_state *state;     /* NULL: not attached */
    size_t size;
    bool writable;                  /* false: mapped read-only, changes are refused */
    uint64_t device, inode;
};

/* From VCUDA_EMULATOR_PROFILE and VCUDA_EMULATOR_STATE; the state's default lies in the user's runtime directory. */
bool state_find_paths(struct state_paths *paths, struct fault *fault);
/* Attach to the state, made from the profile where there is none yet. */
bool state_attach(struct machine *machine, const struct state_paths *paths, struct fault *fault);
/* Make a new state from the profile; processes attached to the old one find themselves superseded. */
bool state_reset(const struct state_paths *paths, struct fault *fault);
bool state_is_current(const struct machine *machine, const struct state_paths *paths);
void state_detach(struct machine *machine);

struct shared_gpu *state_gpu(const struct machine *machine, unsigned slot);
void state_read(const struct shared_gpu *gpu, struct gpu_status *out);

/* Publish a status. Only between lock_take and lock_drop, and read within them, or another writer's change is lost. */
void state_write(struct shared_gpu *gpu, const struct gpu_status *status);

/* Events. Publishing needs the lock too; waiting returns at a ring, at a signal or when `timeout` is over. */
void state_publish_event(struct shared_state *state, uint32_t gpu, uint64_t type, uint64_t data);
void state_ring(struct shared_state *state);
void state_wait_ring(const struct shared_state *state, uint32_t seen, const struct timespec *timeout);

uint64_t clock_us(void);
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size);     /* 64-bit FNV-1a; begin with HASH_START */
#define HASH_START UINT64_C(0xcbf29ce484222325)

#endif
