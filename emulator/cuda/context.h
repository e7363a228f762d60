/*
 * Contexts: which one a thread works in, and which device it belongs to.
 *
 * A handle (CUcontext) is the address of a context and stays recognisable after its end: the places of ended objects are only used again for others of
 * their kind. Not here: what lies in a context; streams, modules and memory are notified of its end.
 */
#ifndef VCUDA_EMULATOR_CONTEXT_H
#define VCUDA_EMULATOR_CONTEXT_H

#include <cuda.h>
#include <stdbool.h>

struct context;

/* NULL: the calling thread has none current. */
struct context *context_current(void);
/* The primary context where that is a green one, as for all that is not about streams; context_require_own: the green one. */
CUresult context_require_own(struct context **out);
struct context *context_root(struct context *context);
/* CUDA_ERROR_INVALID_CONTEXT where there is none, CUDA_ERROR_CONTEXT_IS_DESTROYED where it ended under the thread. */
CUresult context_require(struct context **out);
/* As context_require for a handle that may be NULL: the current one. */
CUresult context_of(CUcontext handle, struct context **out);
CUcontext context_handle(struct context *context);
/* The ordinal that cuDeviceGet gives in this process. */
int context_device(const struct context *context);
/* Waits for everything in all its streams. */
CUresult context_wait(struct context *context);

/* How many devices this process sees; ordinals are 0 to it. */
int device_count(void);
bool device_valid(CUdevice device);
/* Position of the device in the shared state (state_gpu), independent of CUDA_VISIBLE_DEVICES. */
unsigned device_slot(CUdevice device);
/* Beside whose name files of this machine may be put: the path of the state file. */
const char *state_path(void);

#endif
