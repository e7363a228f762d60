/* How many NVLinks join two GPUs; also for the command, which draws them. In shared terms, without NVML's. */
#ifndef VCUDA_EMULATOR_LINKS_H
#define VCUDA_EMULATOR_LINKS_H

#include "state.h"

/* Direct ones between the two, and through switches as many as the weaker of the two has to switches that both reach. */
unsigned count_links(const struct machine *machine, unsigned one, unsigned other);

#endif
