/* Entry points that change a GPU. Like the real driver: root only, and never on a lost GPU. */
#ifndef VCUDA_EMULATOR_SETTER_H
#define VCUDA_EMULATOR_SETTER_H

#include "session.h"

/* SUCCESS leaves a draft under the writers' lock; end it with change_commit or change_abandon. */
nvmlReturn_t begin_set(nvmlDevice_t device, struct view *view, struct gpu_status *draft);

/* What they begin with, once their arguments are right. */
#define BEGIN_SET(device, view, draft)                                                                                           \
    struct view view;                                                                                                            \
    struct gpu_status draft;                                                                                                     \
    do {                                                                                                                         \
        nvmlReturn_t begun = begin_set(device, &view, &draft);                                                                   \
        if (begun != NVML_SUCCESS)                                                                                               \
            return begun;                                                                                                        \
    } while (0)

#endif
