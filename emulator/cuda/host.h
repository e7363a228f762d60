/* The thread that calls the application's functions: whether the caller is in one, where CUDA may not be called. */
#ifndef VCUDA_EMULATOR_HOST_H
#define VCUDA_EMULATOR_HOST_H

#include <stdbool.h>

extern __thread bool host_calling;

#endif
