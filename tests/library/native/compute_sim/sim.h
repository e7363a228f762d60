/* What the simulation consists of: GPU, processes, containers, and the functions by which its files meet. See main.c. */
#ifndef COMPUTE_SIM_H
#define COMPUTE_SIM_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interposer/cuda/compute/foreign_work.h"
#include "interposer/cuda/compute/guesses.h"
#include "interposer/cuda/compute/stream_queue.h"

#define SECOND UINT64_C(1000000000)
enum { PROCESSES = 64, CONTAINERS = 16, STREAMS = 4, EVENTS = 8192, QUEUE = 1024, TENTHS = 1024, CHANGES = 8, ITEMS = 4096 };

/* What follows a wait has no place in time until the wait is over. */
enum item_kind { ITEM_LAUNCH, ITEM_RECORD, ITEM_WAIT };

struct item {
    enum item_kind kind;
    uint64_t ns;                /* GPU time of a launch, wall time of a wait */
    bool wide;
    uint64_t number;            /* of the launch; of the event */
};

struct stream {
    double tail;
    uint64_t waits_until;       /* what is first in it; 0: that is no wait, or one that has not begun */
    unsigned first, count;
    struct item items[ITEMS];
};

/* What a process's thread does next. */
enum doing { DO_BEGIN, DO_LAUNCH, DO_ASK, DO_SYNC, DO_HOST, DO_OVER };

struct workload {
    const char *name;
    uint64_t cost, spread;      /* of a launch, GPU time: cost + up to spread */
    unsigned per_step;          /* launches before the host waits for them; 0: never waits */
    uint64_t host;              /* time of the thread for each launch */
    uint64_t pause;             /* after each step */
    unsigned streams, kinds;
    bool wide;
    uint64_t wait;              /* that the stream waits after each launch but the last of a step; for what is no work of the GPU */
    bool elsewhere;             /* another thread put the wait there */
    unsigned grids;             /* so many different ones, the next is always another; 0: one */
    bool scaled;                /* the cost grows with the grid */
    uint64_t first;             /* the first launch takes so long, in a stream of its own; 0: it is as the others */
    enum { WIDE_GRID, SMALL_GRID, TOGETHER, GRAPH, MIXED } by; /* only wide grids cannot wait for another GPU; mixed: every other is small */
    unsigned tiny;              /* every other launch has so small a part of the cost; 0: none has */
    unsigned rare;              /* all but one in so many have it, not every other */
    bool fresh;                 /* each launch is another kernel */
    bool uneven;                /* a step ends at random, after per_step launches on average */
    unsigned deep;              /* so many launches go into a stream before the next one gets any; 0: one */
    uint64_t grows;             /* after so many launches it has all of its cost, and a hundredth before */
};

struct process {
    const struct workload *workload;
    struct container *container;
    uint64_t start, stop;
    struct limiter *limiter;
    struct timebase timebase;
    struct stream_queue queues[STREAMS];
    struct stream streams[STREAMS];
    double engine;              /* end of the last wide launch */
    double busy_until;          /* virtual */
    double used, used_at_warmup;
    double launch_ends[QUEUE];
    uint64_t launches;
    uint64_t wake, tick;
    enum doing doing;
    unsigned stream;
    struct estimate *estimate;
    uint64_t cost;
    uint64_t estimate_ns;
    double synced;
    uint64_t synced_launch;
    uint64_t waiting_since, longest_wait;
};

struct change {
    uint64_t at;
    uint32_t cores;
};

struct container {
    uint32_t cores, soft;
    struct region *region;
    struct activity_row *row;
    unsigned processes, change_count, changed;
    struct change changes[CHANGES];
    double tenths[TENTHS];
    uint64_t moved;             /* last launch, or payment seen */
    uint64_t longest_stall;
    char lies[16];              /* "": it is honest */
    bool unreadable, silent;    /* its row, for others */
    bool overwrites;            /* its own balance, with the most that a word holds */
    bool refuses;               /* no event is recorded in its streams */
    uint32_t assumed;           /* what the agent tells of it */
    uint64_t lies_again;
};

extern struct process processes[PROCESSES];
extern struct container containers[CONTAINERS];
extern unsigned process_count, container_count;
extern uint64_t seed, now_ns;
extern double now_virtual;
extern double bias;                 /* of estimates, at the beginning */
extern bool rows;                   /* there are activity rows */
extern bool told;                   /* what neighbours' limits are, by the agent */

/* ---- gpu.c ---- */

extern const struct measuring driver;

uint64_t random_below(uint64_t below);
/* Time passes, and work with it. */
void pass(uint64_t until, double virtual_until);
uint64_t next_edge(uint64_t until, double target, double *virtual_at);
double target_of_sync(void);
/* A launch, by its number; or a wait. */
void enqueue(struct process *process, struct stream *stream, struct item item);
/* What was behind waits that are over gets its place. */
void place_items(void);
/* When a wait that has begun is over. */
uint64_t next_wait(uint64_t until);

/* ---- process.c ---- */

const struct workload *workload_named(const char *name);
uint64_t late(uint64_t at, uint64_t jitter);
void find_neighbours(struct process *process);
/* What its thread does next. */
void act(struct process *process, uint64_t jitter);

/* ---- hostile.c ---- */

void lie(struct container *container);

#endif
