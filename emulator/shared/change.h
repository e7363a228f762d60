/*
 * A change of one GPU's status, as a transaction: begin takes the writers' lock and copies the status out, commit publishes it.
 * A change that is not committed is never visible, however the writer ends.
 */
#ifndef VCUDA_EMULATOR_CHANGE_H
#define VCUDA_EMULATOR_CHANGE_H

#include "state.h"

/* False: the state is read-only and nothing is held. */
bool change_begin(struct shared_gpu *gpu, struct gpu_status *draft);
void change_commit(struct shared_gpu *gpu, const struct gpu_status *draft);
void change_abandon(void);
/* Commit, and wake all that wait for events of this GPU. */
void change_announce(const struct machine *machine, unsigned slot, const struct gpu_status *draft, uint64_t type, uint64_t data);

#endif
