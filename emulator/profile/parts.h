/* The parts of a profile and who reads each; for profile.c and the readers alone. */
#ifndef VCUDA_EMULATOR_PARTS_H
#define VCUDA_EMULATOR_PARTS_H

#include "fields.h"
#include "profile.h"

/* The top level, its parts not yet looked into. */
struct parts {
    int64_t format;
    char name[128], driver[80];
    uint32_t cuda[2];
    const struct json *models, *gpus, *cpus, *topology, *nvlink, *processes;
};

bool read_gpus(const struct source *source, const struct parts *parts, struct machine_image *image);
bool read_topology(const struct source *source, const struct parts *parts, struct machine_image *image);
bool read_nvlink(const struct source *source, const struct parts *parts, struct machine_image *image);
bool read_cpus(const struct source *source, const struct parts *parts, struct machine_image *image);
bool read_processes(const struct source *source, const struct parts *parts, struct machine_image *image);

/* Positions of GPUs, each once; their number in `count`. */
bool read_positions(const struct source *source, const struct json *list, const struct machine_image *image, unsigned *positions, unsigned *count);
/* A PCI address, written DDDDDDDD:BB:DD.F. `parts` may be NULL; else domain, bus, device. */
bool read_bus_id(const struct source *source, const struct json *node, char *out, uint32_t *address);

#endif
