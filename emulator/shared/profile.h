/*
 * A compiled profile: which machine is emulated. sandbox/emulator_profile.py makes it from JSON (README.md has its schema).
 *
 * In: the file, which is a header, its GPUs, and their processes in the order of the GPUs; its maker has checked every value. Out: the
 * image of a fresh state, or one fault. sandbox/emulator_layout.py repeats these structures and those that they hold.
 */
#ifndef VCUDA_EMULATOR_PROFILE_H
#define VCUDA_EMULATOR_PROFILE_H

#include "../fault.h"
#include "cuda_section.h"

#define PROFILE_MAGIC UINT64_C(0x4652504144554356) /* the file begins with "VCUDAPRF" */

struct profile_header {
    uint64_t magic;
    uint32_t header_size, gpu_size, process_size;   /* so that a file of another layout is refused */
    uint32_t gpu_count, process_count, node_count, switch_count;
    uint32_t cuda;              /* 12040 for 12.4 */
    char name[128], driver[80];
    struct node_cpus nodes[MAX_NODES];
    char switches[MAX_SWITCHES][BUS_ID_SIZE];
};

struct profile_gpu {
    struct gpu_facts facts;
    uint32_t compute_mode, persistence, mig, process_count;
    int32_t gpu_util, memory_util, temperature_c, power_w;      /* -1: derived */
    uint64_t used_mib;
};

struct machine_image {
    struct shared_state state;
    struct shared_gpu gpus[MAX_GPUS];
    struct cuda_section cuda;
};

/* `image` is zero before. */
bool profile_load(const char *path, struct machine_image *image, struct fault *fault);
bool profile_hash(const char *path, uint64_t *hash, struct fault *fault);

#endif
