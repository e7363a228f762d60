/* What follows from a GPU's facts and status: the values that NVML computes rather than stores. */
#ifndef VCUDA_EMULATOR_DERIVE_H
#define VCUDA_EMULATOR_DERIVE_H

#include "state.h"

/* Drop processes that were registered as live and are gone. Does not touch the shared state: it is a view. */
void forget_dead(struct gpu_status *status);
uint64_t process_start_time(uint32_t pid);      /* 0: no such process */
uint64_t own_pid_namespace(void);
uint64_t own_image(void);                       /* a number of this program's own, which exec changes */

uint32_t gpu_utilisation(const struct gpu_status *status);
uint32_t scripted_utilisation(const struct gpu_status *status);     /* without CUDA processes */
uint32_t memory_utilisation(const struct gpu_status *status);
uint64_t used_mib(const struct gpu_facts *facts, const struct gpu_status *status);  /* without what is reserved */
uint32_t power_mw(const struct gpu_facts *facts, const struct gpu_status *status);
uint32_t temperature_c(const struct gpu_status *status);
uint64_t energy_mj(const struct gpu_facts *facts, const struct gpu_status *status, uint64_t now_us);
/* Settle the energy account; before every change of a status, so that the counter never runs backwards. */
void settle_energy(const struct gpu_facts *facts, struct gpu_status *status);

#endif
