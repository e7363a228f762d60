/*
 * The emulated clock of one GPU: how its time is sliced between processes. Pure arithmetic, `now` is always given.
 *
 * Virtual time V is what a process that has work has received: with n processes that have work it advances at 1/n of real time, with none it stands.
 * A process tells one number, the V at which its work ends; real time is turned into V and back by the points between which V is a line.
 * The process that needs the time advances the timeline; in between it does not exist.
 *
 * One writer at a time (the GPU's lock; see cuda/gpu_lock.h), which may be killed at any instant: the state exists twice, is written where it is not read
 * and published by counting `version` up. An owner extends the end of its own work without the lock, by compare-and-swap: once an advance
 * has passed an end, that is closed, and the owner has to begin again (timeline_start).
 * Invariant: the published V never runs backwards, and neither does its time. All of it zero is a timeline on which nothing ever ran.
 */
#ifndef VCUDA_EMULATOR_TIMELINE_H
#define VCUDA_EMULATOR_TIMELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    TIMELINE_SLOTS = 1024,
    TIMELINE_POINTS = 16384,        /* older times are answered with that of the oldest point */
    TIMELINE_SAMPLES = 8,
};

#define SAMPLE_NS (UINT64_C(1000000000) / 6)    /* the real driver's period of utilisation samples */

/* Busy time in one period; `period` counts them since the clock's zero. */
struct timeline_sample {
    uint64_t period, ns;
};

struct timeline_slot {
    _Atomic uint64_t end;           /* V at which the process's work ends, shifted left by one; the lowest bit: closed */
    uint64_t got_ns;                /* GPU time received, ever */
    struct timeline_sample samples[TIMELINE_SAMPLES];
    uint64_t spares[6];
};

struct timeline_point {
    uint64_t t, v;
};

struct timeline_now {
    uint64_t t, v;
    uint64_t points;                /* ever made; the newest is ring[(points - 1) % TIMELINE_POINTS] */
};

struct timeline {
    _Atomic uint64_t version;       /* now[version & 1] is in force */
    struct timeline_now now[2];
    _Atomic uint32_t slot_high;     /* slots from here on were never used */
    uint32_t spare;
    uint64_t busy_ns;               /* time with work since the start */
    struct timeline_sample samples[TIMELINE_SAMPLES];
    struct timeline_point ring[TIMELINE_POINTS];
    struct timeline_slot slots[TIMELINE_SLOTS];
};

const struct timeline_now *timeline_read(const struct timeline *timeline);  /* as of the last advance */
void timeline_advance(struct timeline *timeline, uint64_t now);
/* How many processes have work, after the last advance. */
unsigned timeline_active(const struct timeline *timeline);
bool timeline_is_active(const struct timeline *timeline, unsigned slot);

/* Work of `slot` ends at `v` from now on, later than before. Just after an advance. */
void timeline_start(struct timeline *timeline, unsigned slot, uint64_t v);
/* The same without the lock, by the slot's owner, from the end it set last. False: that end is over. */
bool timeline_extend(struct timeline_slot *slot, uint64_t from, uint64_t v);
/* The slot's process is gone, and its work with it. Just after an advance. */
void timeline_forget(struct timeline *timeline, unsigned slot);
/* Another process begins in the slot. Just after timeline_forget. */
void timeline_reset(struct timeline *timeline, unsigned slot);

/* When V reached `v`, which is not above the V of now; with several answers the earliest. */
uint64_t timeline_reached(const struct timeline *timeline, uint64_t v);
/* When V will reach `v` if no more work comes; UINT64_MAX: never. */
uint64_t timeline_predict(const struct timeline *timeline, uint64_t v);

/* Busy time in the `periods` whole periods before `now`, of one process (GPU time received) or (slot NULL) of the GPU. Just after an advance to `now`. */
uint64_t timeline_busy(const struct timeline *timeline, const struct timeline_slot *slot, uint64_t now, unsigned periods);

#endif
