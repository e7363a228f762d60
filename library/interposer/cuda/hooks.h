/*
 * What every hook is made with: the driver's own functions, and the guard against meeting ourselves.
 *
 *     CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
 *     {
 *         if (hook_nested())
 *             return real.cuMemAlloc_v2(pointer, bytes);
 *         ...
 *         CUresult error = DRIVER(cuMemAlloc_v2, pointer, bytes);
 *
 * To hook one more: a row in the hooks_*.def of its subject and a definition in one .c file below cuda/; nothing else.
 *
 * `real` has a slot for each row of include/cuda_functions.h, hooked or not. Slots may be called at any time: the first call of any finds all of them
 * in libcuda-real.so.1. One that the driver lacks answers CUDA_ERROR_NOT_FOUND; HAS(symbol) tells beforehand.
 */
#ifndef VCUDA_HOOKS_H
#define VCUDA_HOOKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cuda.h"
#include "interposer/state/state.h"

/* ---- the driver's functions ---- */

struct driver {
#define CUDA(symbol, base, version, stream, parameters, arguments) CUresult (*symbol) parameters;
#include "cuda_functions.h"
#undef CUDA
};

enum function {
#define CUDA(symbol, base, version, stream, parameters, arguments) FUNCTION_##symbol,
#include "cuda_functions.h"
#undef CUDA
    FUNCTION_COUNT
};

extern const struct driver *_Atomic driver_functions;
#define real (*atomic_load_explicit(&driver_functions, memory_order_acquire))

/* Whether this driver has the function. */
bool real_has(enum function function);
#define HAS(symbol) real_has(FUNCTION_##symbol)

/* What dlsym finds for it in the real driver, or NULL. */
void *real_address(enum function function);

/* ---- the guard: a driver that calls its own exports through the PLT meets our hooks, which then pass it through ---- */

/* Not in the static part of thread-local storage (initial-exec), which is small and shared by all that a program opens: where others have used it up,
 * opening us would fail. Finding it is a call of the dynamic linker, one for all hidden ones in a function, and only made where something is limited: ask
 * that first, and go to `real` directly where nothing is. */
extern _Thread_local unsigned hook_depth __attribute__((visibility("hidden"), tls_model("local-dynamic")));

static inline bool hook_nested(void)
{
    return hook_depth != 0;
}

/* A call of the driver with the guard up. */
#define DRIVER(symbol, ...) DRIVER_AT(&hook_depth, symbol, __VA_ARGS__)
/* The same for who has found the thread's hook_depth before. */
#define DRIVER_AT(depth, symbol, ...)                                                                                  \
    ({                                                                                                                 \
        (*(depth))++;                                                                                                  \
        CUresult driver_error_ = real.symbol(__VA_ARGS__);                                                             \
        (*(depth))--;                                                                                                  \
        driver_error_;                                                                                                 \
    })

/* ---- devices ---- */

/* The position of a device in the limits, or VCUDA_UNNAMED, VCUDA_UNKNOWN, VCUDA_NOT_LIMITED. Needs cuInit to have been called, no context. Cached. */
int device_index(CUdevice device);

/* The same of the calling thread's current context; VCUDA_NOT_LIMITED where it has none. */
int device_index_current(void);
/* The same for who knows the current context (or NULL): where there is one device, the driver need not be asked. */
int device_index_of(CUcontext current);

/* ---- contexts, for what follows their overhead ---- */

/* Called after a context appeared on a device (primary ones at each retain) or was destroyed (primary ones: released or reset). At most 4 callbacks. */
typedef void context_callback(CUdevice device, bool created);
void context_on_change(context_callback *callback);

/*
 * Called around each call that may destroy a context: CONTEXT_ENDING before it, then CONTEXT_GONE or CONTEXT_KEPT. In between nothing that lives in it may
 * be touched. `context` NULL: the primary one of the device. For who keeps objects in the application's contexts. At most 4 callbacks.
 */
enum context_fate { CONTEXT_ENDING, CONTEXT_GONE, CONTEXT_KEPT };
typedef void context_end_callback(CUdevice device, CUcontext context, enum context_fate fate);
void context_on_end(context_end_callback *callback);

/* One that was seen made by cuCtxCreate, of whichever version. */
bool context_is_made(CUcontext context);

/* Of a green context that lives; CU_DEVICE_INVALID where we have not seen it made. Asking the driver would make it current, which it may be elsewhere. */
CUdevice context_green_device(CUgreenCtx green);

#endif
