/*
 * What nvmlInit opens: which machine, and which of its GPUs were there.
 *
 * A session sees the GPUs that were there when it began, under the indices they had then, as the real library does. It is stale
 * once the driver was unloaded or the state replaced, and then says so in every call until nvmlInit is called again.
 */
#ifndef VCUDA_EMULATOR_SESSION_H
#define VCUDA_EMULATOR_SESSION_H

#include <nvml.h>

#include "../shared/state.h"

/* A handle is the address of its GPU's place here, so a wrong one is known by its address alone. */
struct nvmlDevice_st {
    unsigned slot;
};

struct session {
    struct machine machine;
    struct state_paths paths;
    _Atomic uint32_t epoch;
    _Atomic uint32_t count;
    _Atomic uint8_t slots[MAX_GPUS];    /* by index */
    struct session *older;              /* never unmapped: another thread may be in the middle of a call */
};

/* A GPU in one call: its facts and its status at one instant, dead processes left out, CUDA processes added. */
struct view {
    const struct session *session;
    struct shared_gpu *gpu;
    const struct gpu_facts *facts;
    unsigned slot, index;
    struct gpu_status status;
};

nvmlReturn_t session_current(const struct session **out);
nvmlReturn_t view_open(nvmlDevice_t device, struct view *view);
/* As view_open for a caller that wants no status. `slot` may be NULL. */
nvmlReturn_t device_check(nvmlDevice_t device, const struct session **session, unsigned *slot);
nvmlDevice_t device_handle(unsigned slot);
bool session_has(const struct session *session, unsigned slot, unsigned *index);
/* NVML's way to hand out a text. */
nvmlReturn_t give_text(const char *text, char *out, unsigned int length);

/* What an entry point about no GPU begins with. */
#define CURRENT(name)                                                                                                            \
    const struct session *name;                                                                                                  \
    do {                                                                                                                         \
        nvmlReturn_t current = session_current(&name);                                                                           \
        if (current != NVML_SUCCESS)                                                                                             \
            return current;                                                                                                      \
    } while (0)

/* What nearly every entry point begins with. */
#define OPEN(name, device, out)                                                                                                  \
    struct view name;                                                                                                            \
    do {                                                                                                                         \
        nvmlReturn_t opened = view_open(device, &name);                                                                          \
        if (opened != NVML_SUCCESS)                                                                                              \
            return opened;                                                                                                       \
        if ((out) == NULL)                                                                                                       \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                                  \
    } while (0)

#endif
