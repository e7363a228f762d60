/*
 * The driver's own functions: found by dlsym in libcuda-real.so.1, which we need (DT_NEEDED) and which is therefore loaded.
 *
 * In: nothing. Out: `real`. All slots are found at the first call of any; finding twice at once, or again in a child whose parent was at it, does the
 * same once more and harms nothing, so there is no lock. Never looked up through the default scope: that finds ourselves.
 */
#include <dlfcn.h>

#include "hooks.h"

#define DRIVER_ALIAS "libcuda-real.so.1"

_Thread_local unsigned hook_depth;

static void resolve(void);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    static CUresult first_##symbol parameters                                                                          \
    {                                                                                                                  \
        resolve();                                                                                                     \
        return real.symbol arguments;                                                                                  \
    }                                                                                                                  \
    static CUresult missing_##symbol parameters                                                                        \
    {                                                                                                                  \
        return CUDA_ERROR_NOT_FOUND;                                                                                   \
    }
#include "cuda_functions.h"
#undef CUDA
#pragma GCC diagnostic pop

struct real real = {
#define CUDA(symbol, base, version, stream, parameters, arguments) .symbol = first_##symbol,
#include "cuda_functions.h"
#undef CUDA
};

static void *_Atomic addresses[FUNCTION_COUNT];
static _Atomic bool resolved;

/* Takes any address for a function: dlsym's contract, which C does not know. */
union address {
    void *object;
#define CUDA(symbol, base, version, stream, parameters, arguments) CUresult(*symbol) parameters;
#include "cuda_functions.h"
#undef CUDA
};

static void resolve(void)
{
    void *driver = dlopen(DRIVER_ALIAS, RTLD_LAZY | RTLD_NOLOAD);
    union address found;
    if (driver == NULL)
        vcuda_warn(TOPIC_DRIVER, "%s is not loaded: CUDA calls fail with CUDA_ERROR_NOT_FOUND", DRIVER_ALIAS);
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    found.object = driver == NULL ? NULL : dlsym(driver, #symbol);                                                     \
    atomic_store(&addresses[FUNCTION_##symbol], found.object);                                                         \
    atomic_store(&real.symbol, found.object == NULL ? missing_##symbol : found.symbol);
#include "cuda_functions.h"
#undef CUDA
    atomic_store(&resolved, true);
}

void *real_address(enum function function)
{
    if (!atomic_load_explicit(&resolved, memory_order_acquire))
        resolve();
    return atomic_load(&addresses[function]);
}

bool real_has(enum function function)
{
    return real_address(function) != NULL;
}
