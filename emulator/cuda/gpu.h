/*
 * One GPU as this process uses it: its share of the timeline, and the engines that its own work queues for.
 *
 * In: work with the earliest V that it may begin at. Out: the V it ends at, at once: the common case, more work for a GPU that is still busy with this process,
 * touches nothing shared but the end of the process's own work. Everything here under driver_lock(), except what is constant.
 */
#ifndef VCUDA_EMULATOR_GPU_H
#define VCUDA_EMULATOR_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "../shared/cuda_section.h"

enum { BLOCKS_EACH = 32 };          /* on a multiprocessor at once, at most */

struct event;
struct context;

struct gpu {
    int ordinal;
    unsigned position;              /* in the state */
    unsigned multiprocessors, threads_each;
    struct shared_gpu *state;
    const struct gpu_facts *facts;
    struct cuda_gpu *shared;
    uint64_t t, v;                  /* of the timeline, when this process last looked */
    uint64_t end;                   /* V at which all of this process's work ends */
    uint64_t wide_tail, copy_tail;  /* of kernels that fill the GPU, and of copies */
    unsigned active;                /* processes with work, when this one last looked */
    struct event *timed, *timed_last;   /* recorded, their time not yet known; in the order of V */
    unsigned contexts;              /* of this process */
    struct context *primary;
    unsigned primary_references, primary_flags;
};

void gpu_prepare(struct gpu *gpu, int ordinal, unsigned position);
/* Advances the timeline to now; afterwards t and v are exact. */
void gpu_look(struct gpu *gpu);
/* Whether V has passed `v`; looks only where that is not known already. */
bool gpu_passed(struct gpu *gpu, uint64_t v);
/* Work of `cost` that begins at V `earliest` or later; where it ends. `earliest` is not above the end of this process's work. */
uint64_t gpu_run(struct gpu *gpu, uint64_t earliest, uint64_t cost);
/* Real time at which V reached `v`, which it has passed. */
uint64_t gpu_when(struct gpu *gpu, uint64_t v);
/* Until when to sleep before looking again whether V has reached `v`. */
uint64_t gpu_expect(struct gpu *gpu, uint64_t v);
/* Sleeps, without the lock, until V has passed `v`. */
void gpu_wait(struct gpu *gpu, uint64_t v);
/* The same, but returns after the first sleep: what is waited for may have changed. */
void gpu_wait_a_while(struct gpu *gpu, uint64_t v);
bool gpu_is_lost(const struct gpu *gpu);

#endif
