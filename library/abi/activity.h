/*
 * The activity table of one GPU: who kept it busy and when, so that each container can tell its own time from its neighbours' slices.
 *
 * A directory for each GPU, `/etc/vcuda/gpus/<uuid>/`, published by the agent and mounted read-only into every container that shares that GPU;
 * it holds one row, a file named after the grant, for each of them. A container writes its own row alone, through a second link to the same
 * file, `/etc/vcuda/state/<uuid>.activity`; everybody else's it can only read. What a row says of its limits is therefore its container's word; the
 * agent's is in the file beside it, `.<grant>`: three little-endian 32-bit words, cores, soft cores, and how many of them the container is to be taken to use
 * whatever its row says (0: its row is believed; not there: an older agent). Rows come and go with grants: readers list the
 * directory again (at most ten times a second) and a row that vanished is forgotten. The agent makes rows with their final size and never cuts them.
 *
 * A row has a slot for each process (the same position as in the region), because the GPU slices its time between processes. A process
 * publishes `busy_since` when work of its is on the GPU, and each stretch of GPU time, once measured, in a ring. Times are CLOCK_MONOTONIC
 * of the node, without what a time namespace adds to it, in nanoseconds. A reader trusts an open stretch no further than `heartbeat_ns` + ACTIVITY_STALE_NS: its process may be dead.
 * deviceplugin/container/activity.py makes and reads the same layout.
 */
#ifndef VCUDA_ABI_ACTIVITY_H
#define VCUDA_ABI_ACTIVITY_H

#include <stdatomic.h>
#include <stdint.h>

#include "region.h"

#define ACTIVITY_MAGIC UINT64_C(0x5443414144554356) /* the file begins with "VCUDAACT" */
#define ACTIVITY_STALE_NS UINT64_C(50000000)

enum { ACTIVITY_VERSION = 1, ACTIVITY_RING = 256 };

struct activity_stretch {
    _Atomic uint64_t start_ns, end_ns;  /* end 0: being written */
};

struct activity_slot {
    _Atomic uint64_t heartbeat_ns;
    _Atomic uint64_t busy_since_ns;     /* 0: idle */
    _Atomic uint64_t head;              /* stretches written since the beginning; the newest is ring[(head - 1) % ACTIVITY_RING], and may still grow */
    _Atomic uint64_t busy_ns;           /* sum of all stretches */
    uint64_t spares[4];
    struct activity_stretch ring[ACTIVITY_RING];
};

struct activity_row {
    uint64_t magic;
    uint32_t version, size;
    char grant[32];
    _Atomic uint32_t slot_high;
    _Atomic uint32_t cores;             /* the limit in force, as in the limits file */
    _Atomic uint32_t soft_cores;
    uint32_t spare;
    _Atomic uint64_t wanted_ns;         /* when a process of the container last wanted the GPU: it launches or waits to */
    _Atomic uint64_t charged_ns;        /* GPU time of the container, corrected; only grows */
    uint64_t spares[6];
    struct activity_slot slots[REGION_SLOTS];
};

_Static_assert(sizeof(struct activity_slot) == 64 + 16 * ACTIVITY_RING, "layout");
_Static_assert(sizeof(struct activity_row) == 128 + REGION_SLOTS * sizeof(struct activity_slot), "layout");

#endif
