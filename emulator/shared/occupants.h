/*
 * Who lives among the CUDA processes of the machine, and what they have of a GPU; for all readers, CUDA processes or not.
 *
 * In: the attached state. Out: views; nothing shared is changed, except that a look from an outer pid namespace leaves a process's number there.
 * Invariant: "<state>.pids" is opened once per process and library and never closed: closing any descriptor of it would drop this process's lock.
 */
#ifndef VCUDA_EMULATOR_OCCUPANTS_H
#define VCUDA_EMULATOR_OCCUPANTS_H

#include "cuda_section.h"
#include "state.h"

struct cuda_section *cuda_section(const struct machine *machine);

/* The descriptor of "<state>.pids", made by the first CUDA process; -1: not there, or it cannot be opened. */
int pids_open(const char *state_path, bool make);
/* Whether the process in the slot lives, as seen by the kernel. `pid`: in the caller's namespace, 0: not visible there. May be NULL. */
bool occupant_lives(struct cuda_section *section, int pids, unsigned slot, uint32_t *pid);

/* One live process that has memory or a context on a GPU. */
struct occupant {
    unsigned slot;
    uint32_t pid;               /* in the caller's namespace, 0: not visible there */
    uint32_t outer_pid;
    uint64_t bytes, contexts;
    uint64_t got_ns;            /* GPU time, ever */
    uint64_t sixth_ns;          /* in the last whole period of SAMPLE_NS */
    uint64_t second_ns;         /* in the last six of them */
    char name[64];
};

/* A GPU at one instant, dead processes left out. */
struct occupancy {
    unsigned count;
    struct occupant *occupants;
    uint64_t bytes;             /* of all */
    uint64_t sixth_ns, second_ns;       /* time with work */
    uint64_t busy_ns;           /* ever */
};

/* False: no memory. occupancy_free() in any case. */
bool occupancy_read(const struct machine *machine, const char *state_path, unsigned gpu, struct occupancy *out);
void occupancy_free(struct occupancy *occupancy);

/* Adds the CUDA processes of the GPU to a status that was read: its list, memory, utilisation and energy. What is published stays as it is. */
void show_occupants(const struct machine *machine, const char *state_path, unsigned gpu, struct gpu_status *status);

uint64_t clock_ns(void);        /* CLOCK_MONOTONIC: the emulated GPUs' clock */

#endif
