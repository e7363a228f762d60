/*
 * Physical memory: what is taken from a GPU, in units of SPACE_UNIT, and where its content lies.
 *
 * In: a device and a size. Out: a piece with addresses of its own, charged to this process in the GPU's shared account; or NULL,
 * which is CUDA_ERROR_OUT_OF_MEMORY. Host memory (device HOST) is the same without a charge. A piece is unmade by the part that made it,
 * once nothing refers to it. Not here: what an application sees of it (allocation.h). Everything under memory_lock(). Invariant:
 * the sum of `charge` over all pieces is what this process has taken from the account of the GPU through this file.
 */
#ifndef VCUDA_EMULATOR_PHYSICAL_H
#define VCUDA_EMULATOR_PHYSICAL_H

#include <stdbool.h>

#include "space.h"
#include "spans.h"

enum { HOST = -1 };

struct physical {
    struct span span;           /* its addresses: pointers into it where an allocation has it to itself or shares it */
    int device;
    uint64_t charge;            /* 0 for host memory, imports, and managed memory that was evicted */
    uint64_t id;                /* never used again in this process */
    bool exposed;               /* the CPU may touch it at its address */
    bool evictable;             /* managed: moves to the host where the GPU's memory is wanted */
    uint64_t touched_from, touched_to;  /* offsets that may hold something else than zero */
    struct sharing *sharing;    /* NULL: no other process sees it */
    void *owner;                /* what counts the references, to find itself again */
    struct physical *next_evictable;
};

struct physical_request {
    int device;
    uint64_t size;              /* rounded up to SPACE_UNIT */
    enum space_zone zone;
    bool exposed, evictable;
    bool imported;              /* charged elsewhere */
};

struct physical *physical_make(const struct physical_request *request);
void physical_unmake(struct physical *physical);
void *physical_content(const struct physical *physical);
/* Bytes at `offset` are about to be written. */
void physical_touch(struct physical *physical, uint64_t offset, uint64_t size);

/* One lock for everything in memory/: held for lookups and changes, never while bytes are moved. */
void memory_lock(void);
void memory_unlock(void);

#endif
