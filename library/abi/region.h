/*
 * The region: what the processes of one container know of each other. One file for each grant, `/etc/vcuda/state/region`, mapped shared
 * by all of them and read by the agent. The agent makes it with its final size; it is never cut, so a mapping cannot fault.
 *
 * Memory has no total that could be left wrong: what a device has given out is the sum over the slots, and a slot is written by its own process
 * alone. To reserve, a process adds to `pending`, sums all slots, and moves the bytes to `used` or takes them back. Whatever kills it, clearing
 * its slot returns all of it.
 * A process holds an open file description's lock (F_OFD_SETLK) on the first byte of its slot in this file, and says so in `locked`: where it says so
 * and the lock is free, the process is dead or has become another program by exec. `pid` is written by compare-and-swap; with REGION_CLEARING
 * it is that of the process that claims or clears the slot, which holds the lock too. Who clears a slot writes `pid` last.
 * All words are lock-free atomics, little endian, zero until written. Readers look at slots below `slot_high`.
 * Times are of the node's CLOCK_MONOTONIC, without what a process's time namespace adds to it (state/node_clock.c).
 * deviceplugin/container/region.py reads the same layout.
 */
#ifndef VCUDA_ABI_REGION_H
#define VCUDA_ABI_REGION_H

#include <stdatomic.h>
#include <stdint.h>

#include "limits.h"

#define REGION_MAGIC UINT64_C(0x4745524144554356)   /* the file begins with "VCUDAREG" */

enum { REGION_VERSION = 1, REGION_SLOTS = 1024, REGION_LENDERS = 256 };

#define REGION_CLEARING UINT32_C(0x80000000)        /* in `pid`: this process claims the slot or clears a dead one's */

/* One process on one device. Bytes, and nanoseconds of GPU time. */
struct region_use {
    _Atomic uint64_t used;              /* allocations, pools' reserve included */
    _Atomic uint64_t pending;           /* reserved, the driver not asked yet */
    _Atomic uint64_t overhead;          /* contexts, modules, local memory: what the driver holds beyond `used` */
    _Atomic uint64_t inflight_ns;       /* estimated GPU time of what was launched and is not measured */
};

struct region_slot {
    _Atomic uint32_t pid;               /* in the process's own pid namespace; 0: free */
    _Atomic uint32_t locked;            /* 1: while it lives it holds the slot's lock; 2: it is cleared without the lock */
    _Atomic uint64_t start_time;        /* field 22 of /proc/PID/stat; all ones: /proc does not tell */
    _Atomic uint64_t pid_namespace;     /* inode of /proc/self/ns/pid */
    _Atomic uint64_t claimed_ns;
    /* Whose exported memory this process has imported: a bit for each slot's number modulo REGION_LENDERS. While it stands, what that process
     * had stays in its slot also when it is dead. */
    _Atomic uint64_t lenders[REGION_LENDERS / 64];
    struct region_use use[LIMITS_MAX_DEVICES];  /* by position in the limits file */
};

/* One device, all processes together. Counters only grow. */
struct region_device {
    _Atomic uint64_t peak;              /* most bytes in use at once */
    _Atomic uint64_t refusals;          /* allocations that were refused */
    _Atomic int64_t balance_ns;         /* the budget: credit above zero, debt below; of GPU time */
    _Atomic uint64_t refilled_ns;       /* up to when the balance was credited */
    _Atomic uint64_t charged_ns;        /* GPU time used, corrected for time slicing */
    _Atomic uint64_t throttled_ns;      /* wall time that launches were held back, summed over threads */
    _Atomic uint64_t throttled_launches;
    _Atomic uint64_t launches;          /* counted only while cores are limited */
    _Atomic uint64_t effective_cores;   /* thousandths of a percent in force now: above `cores` while borrowing */
    _Atomic uint64_t context_bytes;     /* the least that a context took, right after it was made; 0: not known yet */
    _Atomic uint64_t sampled_ns[2];     /* of an older and a newer sample of charged_ns; 0: none yet */
    _Atomic uint64_t sampled_charged_ns[2];
    uint64_t spares[2];
};

struct region {
    uint64_t magic;
    uint32_t version, size;
    char grant[32];
    _Atomic uint32_t slot_high;         /* slots from here on were never used */
    uint32_t spare;
    _Atomic uint64_t reaped_ns;         /* when a process last began to look for dead slots; one looks for all */
    _Atomic uint64_t unknown_functions; /* how often a program was given a function of a newer driver that ought to be limited and is not */
    uint64_t spares[7];
    struct region_device devices[LIMITS_MAX_DEVICES];
    struct region_slot slots[REGION_SLOTS];
};

_Static_assert(sizeof(struct region_use) == 32, "layout");
_Static_assert(sizeof(struct region_slot) == 64 + 32 * LIMITS_MAX_DEVICES, "layout");
_Static_assert(sizeof(struct region_device) == 128, "layout");
_Static_assert(sizeof(struct region) == 128 + 128 * LIMITS_MAX_DEVICES + REGION_SLOTS * sizeof(struct region_slot), "layout");

#endif
