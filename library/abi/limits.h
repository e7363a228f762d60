/*
 * The limits file: what one grant may use, written by the agent, read by the interposers.
 *
 * `/etc/vcuda/limits`, little endian, whole file of `size` bytes: one header, then `device_count` devices. It is replaced by rename and never
 * changed in place, so a reader that opens it sees one version, whole; a reader that wants changes looks at the name again. A file whose
 * magic, version, size or checksum is wrong is refused with the reason. The old `vcuda.config` stays beside it for the old client.
 * deviceplugin/container/limits_file.py writes the same layout; tests/container holds the two together.
 */
#ifndef VCUDA_ABI_LIMITS_H
#define VCUDA_ABI_LIMITS_H

#include <stdint.h>

#define LIMITS_MAGIC "VCUDALIM"         /* 8 bytes, without an end */

enum {
    LIMITS_VERSION = 1,
    LIMITS_MAX_DEVICES = 16,
    LIMITS_NO_CORES = 100,              /* from here on the GPU's time is not limited */
};

struct limits_header {
    char magic[8];
    uint32_t version;
    uint32_t size;                      /* of the whole file, bytes */
    uint32_t device_count;
    uint32_t flags;                     /* 0; unknown bits are refused */
    uint64_t generation;                /* counts every change of this grant's limits */
    char grant[32];                     /* the grant's id, NUL padded; names its rows in the activity directories */
    uint64_t checksum;                  /* 64-bit FNV-1a over the file with this field zero */
    uint8_t spare[56];
};

struct limits_device {
    char uuid[48];                      /* GPU-..., NUL padded: what is enforced goes by this, never by an ordinal */
    char bus_id[32];                    /* as NVML writes it */
    uint64_t memory_bytes;              /* 0: not limited */
    uint32_t cores;                     /* percent of the GPU's time, 1 to 99; LIMITS_NO_CORES and more: not limited */
    uint32_t soft_cores;                /* 0: `cores` is hard; else idle time may be borrowed up to this percentage */
    uint8_t spare[32];
};

_Static_assert(sizeof(struct limits_header) == 128, "the header is 128 bytes");
_Static_assert(sizeof(struct limits_device) == 128, "a device is 128 bytes");

#endif
