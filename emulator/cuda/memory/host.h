/*
 * The end of page-locked host memory: given back where it was allocated here, forgotten where it is the application's. Under
 * memory_lock().
 */
#ifndef VCUDA_EMULATOR_HOST_H
#define VCUDA_EMULATOR_HOST_H

#include "allocation.h"

void host_release(struct allocation *allocation);

#endif
