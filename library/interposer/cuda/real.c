/*
 * The driver's own functions: found by dlsym in libcuda-real.so.1, which we need (DT_NEEDED) and which is therefore loaded.
 *
 * In: nothing. Out: `real`. All slots are found at the first call of any, aside, and published whole; finding twice at once, or again in a child whose
 * parent was at it, does the same once more and harms nothing, so there is no lock. Never looked up through the default scope: that finds ourselves.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "hooks.h"

#define DRIVER_ALIAS "libcuda-real.so.1"

struct found {
    struct driver functions;
    void *addresses[FUNCTION_COUNT];
};

_Thread_local unsigned hook_depth;

static struct found *_Atomic found;
static struct found *find(void);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    static CUresult first_##symbol parameters                                                                          \
    {                                                                                                                  \
        const struct found *now = find();                                                                              \
        return now == NULL ? CUDA_ERROR_OUT_OF_MEMORY : now->functions.symbol arguments;                               \
    }                                                                                                                  \
    static CUresult missing_##symbol parameters                                                                        \
    {                                                                                                                  \
        return CUDA_ERROR_NOT_FOUND;                                                                                   \
    }
#include "cuda_functions.h"
#undef CUDA
#pragma GCC diagnostic pop

static const struct driver first = {
#define CUDA(symbol, base, version, stream, parameters, arguments) .symbol = first_##symbol,
#include "cuda_functions.h"
#undef CUDA
};
const struct driver *_Atomic driver_functions = &first;

/* Takes any address for a function: dlsym's contract, which C does not know. */
union address {
    void *object;
#define CUDA(symbol, base, version, stream, parameters, arguments) CUresult(*symbol) parameters;
#include "cuda_functions.h"
#undef CUDA
};

static void fill(struct found *fresh, void *driver)
{
    union address address;
#define CUDA(symbol, base, version, stream, parameters, arguments)                                                     \
    address.object = dlsym(driver, #symbol);                                                                           \
    fresh->addresses[FUNCTION_##symbol] = address.object;                                                              \
    fresh->functions.symbol = address.object == NULL ? missing_##symbol : address.symbol;
#include "cuda_functions.h"
#undef CUDA
}

/* NULL without memory: the linker does not tell then what is loaded. */
static struct found *find(void)
{
    struct found *none = NULL, *fresh = atomic_load_explicit(&found, memory_order_acquire);
    if (fresh != NULL)
        return fresh;
    void *driver = dlopen(DRIVER_ALIAS, RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL)
        vcuda_warn(TOPIC_DRIVER, "%s is not to be found: this call fails with CUDA_ERROR_OUT_OF_MEMORY, and the next one looks again", DRIVER_ALIAS);
    fresh = driver == NULL ? NULL : malloc(sizeof *fresh);
    if (fresh == NULL)
        return NULL;
    fill(fresh, driver);
    if (!atomic_compare_exchange_strong(&found, &none, fresh)) {
        free(fresh);
        fresh = none;
    }
    atomic_store(&driver_functions, &fresh->functions);
    return fresh;
}

void *real_address(enum function function)
{
    const struct found *now = find();
    return now == NULL ? NULL : now->addresses[function];
}

bool real_has(enum function function)
{
    return real_address(function) != NULL;
}

static const struct vcuda_export exports[] = {
#define HOOK(symbol) {#symbol, (const void *)symbol},
#include "hooks.def"
#undef HOOK
};

/* All that runs before the first call: the linker may be asked for a function before one is called. */
__attribute__((constructor)) static void hide_what_the_driver_lacks(void)
{
    vcuda_hide_what_is_lacking(DRIVER_ALIAS, exports, sizeof exports / sizeof exports[0]);
}
