/*
 * The driver in this process: the machine it attached to, the GPUs it may see, its place among the machine's CUDA processes.
 *
 * In: the environment, once, at cuInit. Out: `driver`, constant from then on but for what lock.h guards. A child of fork has nothing: CUDA does
 * not survive fork. Not here: contexts. Invariant: `driver` is complete before `session_state` says so.
 */
#ifndef VCUDA_EMULATOR_CUDA_SESSION_H
#define VCUDA_EMULATOR_CUDA_SESSION_H

#include <cuda.h>
#include <stdatomic.h>

#include "../shared/occupants.h"
#include "gpu.h"

enum session_state { SESSION_NONE, SESSION_READY, SESSION_FORKED };

struct driver {
    struct machine machine;
    struct state_paths paths;
    struct cuda_section *section;
    int pids;                   /* descriptor of the pids file */
    int cuda;                   /* 12040 for 12.4 */
    int count;
    struct gpu gpus[MAX_GPUS];  /* by ordinal */
    uint64_t context_bytes;     /* what the first context of a process on a GPU takes */
    uint64_t further_bytes;     /* what each further one takes */
    int first_numa;             /* the NUMA node that the memory of the first GPU is, the next one's of the second; -1: they are none */
    bool hmm;                   /* GPUs can use all memory of the process */
};

extern struct driver driver;
extern _Atomic int session_state;

/* What a call answers that came too early, or in a forked child. */
CUresult session_error(void);
/* This process's place, claimed when first asked for; false: all places are taken. */
bool slot_claim(void);
extern unsigned slot_own;       /* only after slot_claim */

/* Which GPUs CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave, by position in the state. Returns how many. */
int visible_positions(const struct machine *machine, unsigned *positions);

#endif
