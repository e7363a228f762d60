/*
 * The lock of one GPU's shared part, between threads and processes: a futex that names its holder, so that a holder that died is found out and its lock taken over.
 * Held for arithmetic alone. Only processes with a place (slot_claim) take it; what it guards is whole whenever its holder dies (timeline.h, usage.c).
 */
#ifndef VCUDA_EMULATOR_GPU_LOCK_H
#define VCUDA_EMULATOR_GPU_LOCK_H

#include "gpu.h"

void gpu_lock(struct cuda_gpu *gpu);
void gpu_unlock(struct cuda_gpu *gpu);
/* A process begins in `slot`: what its predecessor held is free again. */
void gpu_lock_inherit(struct cuda_gpu *gpu, unsigned slot);
/* Under the lock: everything of dead processes on this GPU is taken back. */
void gpu_reap(struct cuda_gpu *gpu, uint64_t now);
void gpu_reap_slot(struct cuda_gpu *gpu, unsigned slot);

#endif
