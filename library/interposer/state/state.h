/*
 * The shared state of one process: which limits hold, the container's region, this process's slot, and the helper thread. Built into
 * libvcuda.so.1, which libcuda.so.1 and libnvidia-ml.so.1 both need, so that there is one of it however the two were loaded.
 *
 * In: the base directory (paths.c says which), its files as library/abi describes them. Out: what is declared here, nothing else is exported.
 * Not here: anything of CUDA or NVML, memory accounting, compute limiting.
 *
 * Invariants. Nothing but vcuda_hide_what_is_lacking happens before the first call. No function of these waits without bound, ends the process, or
 * writes anything but one rate-limited line on stderr. What a reader got (limits, region, slot) stays readable for the life of the process. A forked
 * child starts again: its first call attaches it again, and pointers to the parent's slot must not be kept (see vcuda_on_fork).
 */
#ifndef VCUDA_STATE_H
#define VCUDA_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "abi/limits.h"
#include "abi/region.h"

#pragma GCC visibility push(default)     /* declared here: exported */

/* Instead of a device's position in the limits. VCUDA_UNKNOWN: there are limits, and the driver does not say at present which GPU it is. */
enum { VCUDA_NOT_LIMITED = -1, VCUDA_UNNAMED = -2, VCUDA_UNKNOWN = -3, VCUDA_PATH = 512 };

/* ---- attaching ---- */

extern _Atomic uint32_t vcuda_attached;     /* 0 until attached, and again in a forked child */
void vcuda_attach_now(void);

/* Idempotent and cheap; everything below calls it where it needs to. */
static inline void vcuda_attach(void)
{
    if (atomic_load_explicit(&vcuda_attached, memory_order_acquire) == 0)
        vcuda_attach_now();
}

/* ---- what the linker shows (symbols.c) ---- */

/* A function that an object of ours exports in front of the driver's. */
struct vcuda_export {
    const char *name;
    const void *function;
};

/* From the object's constructor: hides those that the driver's library of this name, which the object needs, does not have. */
void vcuda_hide_what_is_lacking(const char *driver, const struct vcuda_export *exports, size_t count);

/* ---- limits ---- */

enum limits_origin {
    LIMITS_ABSENT,                  /* not a container of ours: nothing is limited */
    LIMITS_FROM_FILE,
    LIMITS_FROM_LEGACY,             /* vcuda.config: one device, its uuid is "" and matches every GPU */
    LIMITS_UNREADABLE,              /* ours, but nobody can say how much: no device memory is given (closed), compute is free */
};

/* What holds now. Immutable; a change publishes another one. Positions of devices never change in the life of a process. */
struct limits_view {
    uint64_t generation;
    enum limits_origin origin;
    uint32_t device_count;
    char grant[33];                 /* "" without a limits file */
    struct limits_device devices[LIMITS_MAX_DEVICES];
};

extern const struct limits_view *_Atomic vcuda_limits_view;

static inline const struct limits_view *vcuda_limits(void)
{
    vcuda_attach();
    return atomic_load_explicit(&vcuda_limits_view, memory_order_acquire);
}

/* The limits of one device, or NULL: not limited by us. The index is a position in the limits file. */
static inline const struct limits_device *vcuda_device(int index)
{
    const struct limits_view *view = vcuda_limits();
    return index >= 0 && (uint32_t)index < view->device_count ? &view->devices[index] : NULL;
}

/*
 * No allocation of device memory may succeed: the limits are ours and unreadable, or this process has no part in the container's common account, so that
 * nobody could know what it takes.
 */
bool vcuda_memory_closed(void);

/*
 * The index of a GPU, by the 32 hexadecimal digits of its UUID. VCUDA_UNNAMED, with one line, where there are limits and they do not name it: it is
 * another container's, and a wrong device node has brought it here. VCUDA_NOT_LIMITED without limits.
 */
int vcuda_index_of(const char *uuid);

/* Reads the limits again if the file changed; looks at most every 250 ms. The helper thread does it too. */
void vcuda_refresh(void);

/* Called after each change with the new view, by whichever thread saw it. Registering a callback twice does nothing. At most 8. */
typedef void vcuda_limits_callback(const struct limits_view *view);
void vcuda_on_limits_change(vcuda_limits_callback *callback);

/* ---- the region and this process's slot ---- */

/* The container's region, or, for the time only, a private one where the file cannot be used. NULL while there are no limits to keep (absent, unreadable). */
struct region *vcuda_region(void);
bool vcuda_region_shared(void);

extern struct region_slot *_Atomic vcuda_own_slot;
extern _Atomic uint32_t vcuda_own_pid;
extern _Atomic uint64_t vcuda_own_namespace;
struct region_slot *vcuda_claim_slot(void);

static inline bool vcuda_slot_is_own(const struct region_slot *slot)
{
    return atomic_load_explicit(&slot->pid, memory_order_relaxed) == atomic_load_explicit(&vcuda_own_pid, memory_order_relaxed) &&
           atomic_load_explicit(&slot->pid_namespace, memory_order_relaxed) == atomic_load_explicit(&vcuda_own_namespace, memory_order_relaxed);
}

/*
 * Called with each slot that this process claims, before anything is counted there: what it has already belongs into it. No callback may claim. Twice does
 * nothing. At most 4.
 */
typedef void vcuda_slot_callback(struct region_slot *slot);
void vcuda_on_slot(vcuda_slot_callback *callback);

/* This process's slot, claimed at the first call, and again where another process has cleared it. Never NULL: without a region it is one outside, and with all taken too, with one line. */
static inline struct region_slot *vcuda_slot(void)
{
    struct region_slot *slot = atomic_load_explicit(&vcuda_own_slot, memory_order_acquire);
    return slot != NULL && vcuda_slot_is_own(slot) ? slot : vcuda_claim_slot();
}

/* The position of the slot in the region (and in activity rows), or -1 for one outside. */
int vcuda_slot_number(void);

/* Clears slots of dead processes of this pid namespace; returns how many. Some helper of the container does it four times a second. */
unsigned vcuda_reap(void);

/*
 * A process of the container that exported memory which this one has imported. From vcuda_borrow on its slot keeps what it had, until this process
 * has returned it or is dead: so the memory counts without a gap until the importer counts it. One caller at a time.
 */
struct vcuda_lender {
    uint32_t pid, number;           /* in our pid namespace; of its slot */
    uint64_t claimed_ns;
};
bool vcuda_borrow(uint32_t pid, struct vcuda_lender *lender);   /* false: no living process of the container */
void vcuda_return(const struct vcuda_lender *lender);
bool vcuda_lender_ended(const struct vcuda_lender *lender);
/* Whether another process has something of ours. */
bool vcuda_lends(void);

/* Bytes a device has given out: `used` + `overhead` over all slots, this process's included. What every view of memory reports. */
uint64_t vcuda_used(int index);

/* The same of one process, by its pid in our pid namespace; false: it has no slot. */
bool vcuda_used_by(uint32_t pid, int index, uint64_t *bytes);

/* Percent of the container's share of the GPU's time that its processes used in the last second or so; VCUDA_NOT_LIMITED where their time is not limited. */
int vcuda_utilization(int index);

/* ---- paths ---- */

/* For who has attached. False without a base directory, or where the result does not fit. */
bool vcuda_path(char path[static VCUDA_PATH], const char *format, ...) __attribute__((format(printf, 2, 3)));
bool vcuda_activity_row(char path[static VCUDA_PATH], const char *uuid);          /* own row, writable */
bool vcuda_activity_directory(char path[static VCUDA_PATH], const char *uuid);    /* all rows, read-only */

/* ---- the helper thread, and the NVML poller (vcuda_poller_*) ---- */

/* A tick returns when (CLOCK_MONOTONIC, ns) it wants to run again, at the latest; UINT64_MAX: only when woken. It runs on the helper, or where
 * no thread can be made on any thread that calls vcuda_helper_poll; never twice at once. */
typedef uint64_t vcuda_tick(uint64_t now_ns);

/* Registers a tick, due at once, and starts the helper if there is none. Idempotent and cheap: call it whenever there is something to do, so that
 * a forked child's helper comes back (the child begins without ticks). At most 8. */
void vcuda_helper_add(vcuda_tick *tick);

/* Where there are limits: follows their file and clears dead processes' slots. For every process that begins to use a GPU. */
void vcuda_helper_watch(void);

void vcuda_helper_wake(vcuda_tick *tick);       /* makes it due now */
void vcuda_helper_poll(void);                   /* where there is no thread: runs what is due */

/* The same on a separate thread, for calls that may be slow or hang: nothing waits for it. False: there is no such thread, and nothing runs the tick. */
bool vcuda_poller_add(vcuda_tick *tick);
void vcuda_poller_wake(vcuda_tick *tick);
bool vcuda_poller_is_here(void);                /* the calling thread is at its ticks */

/* True from the moment the process exits: ticks must not touch the driver any more. */
bool vcuda_leaving(void);

/* ---- fork, time, log ---- */

/* Called in a forked child, before it runs on: forget what belonged to the parent, take no lock. Twice does nothing. At most 16. */
void vcuda_on_fork(void (*child)(void));

uint64_t vcuda_now_ns(void);

/*
 * Times that processes tell each other are of the node's clock, vcuda_now_ns() - vcuda_ahead(): CLOCK_MONOTONIC of a process in a time namespace is ahead of
 * that by what the namespace says. vcuda_node_ns: now.
 */
int64_t vcuda_ahead(void);
uint64_t vcuda_node_ns(void);

/* The kernel refuses a second and more in tv_nsec (EINVAL), and who waits so does not wait at all. */
static inline struct timespec vcuda_span(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / UINT64_C(1000000000)), .tv_nsec = (long)(ns % UINT64_C(1000000000))};
}

/* One line on stderr, "vcuda: ...", at most once a minute for each topic. */
enum vcuda_topic {
    TOPIC_LIMITS, TOPIC_DEVICE, TOPIC_REGION, TOPIC_SLOT, TOPIC_HELPER, TOPIC_DRIVER, TOPIC_MEMORY, TOPIC_COMPUTE, TOPIC_ACTIVITY, TOPIC_COUNT
};
void vcuda_warn(enum vcuda_topic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));

#pragma GCC visibility pop

#endif
