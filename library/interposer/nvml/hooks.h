/*
 * What NVML hooks are made with: NVML's own functions, found by dlsym in libnvidia-ml-real.so.1 at the first call of any, and the device's limits.
 * One that the driver lacks answers NVML_ERROR_FUNCTION_NOT_FOUND. The CUDA driver is never opened from here: a program that asks for libcuda.so.1
 * later would be given the real one.
 */
#ifndef VCUDA_NVML_HOOKS_H
#define VCUDA_NVML_HOOKS_H

#include "details.h"
#include "interposer/state/state.h"
#include "nvml.h"

struct real_nvml {
#define HOOK(symbol) __typeof__(symbol) *_Atomic symbol;
#define NEEDED(symbol) __typeof__(symbol) *_Atomic symbol;
#include "hooks.def"
#include "needed.def"
#undef HOOK
#undef NEEDED
};

/* Found at the first call; NULL where the driver lacks it. */
const struct real_nvml *real_nvml(void);

/* A call of NVML's own function. */
#define NVML(symbol, ...)                                                                                              \
    ({                                                                                                                 \
        __typeof__(symbol) *real_##symbol = real_nvml()->symbol;                                                       \
        real_##symbol == NULL ? NVML_ERROR_FUNCTION_NOT_FOUND : real_##symbol(__VA_ARGS__);                            \
    })

/* The position of a device in the limits, or VCUDA_NOT_LIMITED. */
int nvml_device_index(nvmlDevice_t device);

#endif
