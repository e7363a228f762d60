/*
 * Green contexts ("CUDA Driver API, Green Contexts"): streams of their own in their device's primary context, which they hold. What share of the GPU one was
 * made with is not looked at. Everything else that is made while one is current is the primary one's.
 * CUDA lets one be current to one thread at a time only, and does not look; here it is counted (vcuda_emulator_green_violations).
 */
#ifndef VCUDA_EMULATOR_GREEN_H
#define VCUDA_EMULATOR_GREEN_H

#include <cuda.h>
#include <stdbool.h>

struct context;

/* NULL: it is not one. */
CUgreenCtx green_handle(const struct context *context);
/* It becomes current to the calling thread. */
void green_enter(struct context *green);
/* It takes no events: VCUDA_EMULATOR_GREEN_EVENTS=refused, for tests. */
bool green_refuses(const struct context *context);

#endif
