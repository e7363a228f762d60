/* See hooks.h. Finding twice at once does the same once more and harms nothing, so there is no lock. */
#include <dlfcn.h>

#include "hooks.h"

enum { UUID_TEXT = 96 };     /* as long as NVML ever writes it */

#define DRIVER_ALIAS "libnvidia-ml-real.so.1"

static struct real_nvml found;
static _Atomic bool resolved;

static void *find(void *driver, const char *symbol)
{
    return driver == NULL ? NULL : dlsym(driver, symbol);
}

static void resolve(void)
{
    void *driver = dlopen(DRIVER_ALIAS, RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL)
        vcuda_warn(TOPIC_DRIVER, "%s is not loaded: NVML calls fail with FUNCTION_NOT_FOUND", DRIVER_ALIAS);
#define HOOK(symbol) atomic_store(&found.symbol, (__typeof__(symbol) *)find(driver, #symbol));
#define NEEDED(symbol) HOOK(symbol)
#include "hooks.def"
#include "needed.def"
#undef HOOK
#undef NEEDED
    atomic_store(&resolved, driver != NULL);    /* without memory the linker does not tell: the next call looks again */
}

const struct real_nvml *real_nvml(void)
{
    if (!atomic_load_explicit(&resolved, memory_order_acquire))
        resolve();
    return &found;
}

int nvml_device_index(nvmlDevice_t device)
{
    char uuid[UUID_TEXT];
    vcuda_refresh();
    if (vcuda_limits()->device_count == 0 || NVML(nvmlDeviceGetUUID, device, uuid, sizeof uuid) != NVML_SUCCESS)
        return VCUDA_NOT_LIMITED;
    int index = vcuda_index_of(uuid);
    return index == VCUDA_UNNAMED ? VCUDA_NOT_LIMITED : index;      /* what NVML shows of it does no harm */
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
