/*
 * The profile: which machine is emulated. In: a JSON file (README.md has its schema). Out: the image of a fresh state, or one
 * fault "FILE:LINE:COLUMN: cause". Not here: where the image is kept.
 */
#ifndef VCUDA_EMULATOR_PROFILE_H
#define VCUDA_EMULATOR_PROFILE_H

#include "../fault.h"
#include "../shared/cuda_section.h"

struct machine_image {
    struct shared_state state;
    struct shared_gpu gpus[MAX_GPUS];
    struct cuda_section cuda;
};

/* `image` is zero before. */
bool profile_load(const char *path, struct machine_image *image, struct fault *fault);
bool profile_hash(const char *path, uint64_t *hash, struct fault *fault);

#endif
