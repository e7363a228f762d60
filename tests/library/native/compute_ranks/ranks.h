/* What the simulation of a job with several ranks consists of: GPUs, exchanges, ranks. See main.c. */
#ifndef COMPUTE_RANKS_H
#define COMPUTE_RANKS_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interposer/cuda/compute/stream_queue.h"

#define SECOND UINT64_C(1000000000)
enum { RANKS = 8, STREAMS = 2, OPERATIONS = 8192, MARKS = 4096, ACTIONS = 1024, AHEAD = 1024, FEW_BLOCKS = 32 };
enum { COMPUTE, EXCHANGING };           /* streams */

/* What is in a stream: work; a part of an exchange, over when all ranks have begun it and its data is moved; an event, and the wait for one. */
enum operation_kind { WORK, EXCHANGE, RECORD, AWAIT, MARK };

struct operation {
    enum operation_kind kind;
    uint64_t ns;
    unsigned number;                    /* of the exchange, the event or the mark */
    uint64_t recorded;                  /* of a mark: which of its records */
    bool last;                          /* of its launch */
};

struct stream {
    struct operation operations[OPERATIONS];
    uint64_t first, end;                /* of those that are not over; ever */
    bool begun;                         /* the first */
    uint64_t over_ns;                   /* when it will be */
    uint64_t launched, finished;        /* launches */
};

struct mark_event {
    uint64_t recorded, reached_ns;      /* 0: not yet */
};

/* What a rank's thread does in each step, one after the other. */
enum action_kind { LAUNCH_WORK, LAUNCH_EXCHANGE, LAUNCH_GRAPH, PUT_RECORD, PUT_AWAIT, SYNCHRONIZE, REST };

struct action {
    enum action_kind kind;
    unsigned stream, number;
};

enum doing { DO_ACT, DO_ASK, DO_SYNC, DO_OVER };

struct rank {
    unsigned number;
    uint32_t cores;
    struct limiter *limiter;
    struct timebase timebase;
    struct stream_queue queues[STREAMS];
    struct stream streams[STREAMS];
    struct mark_event marks[MARKS];
    unsigned mark_count;
    unsigned step, position;
    enum doing doing;
    uint64_t wake, tick;
    struct estimate *estimate;
    uint64_t estimate_ns, asked_ns, longest_pause;
};

/* The job, see main.c. */
struct job {
    unsigned ranks, steps, kernels, exchanges;
    uint64_t work, exchange, host, jitter, record;
    unsigned stalled_step;
    uint64_t stall;
    enum exchange_by { BY_SMALL, BY_COOPERATIVE, BY_GRAPH } by;
    bool synchronous, apart;
    struct action actions[ACTIONS];
    unsigned action_count;
};

extern struct job job;
extern struct rank ranks[RANKS];
extern uint64_t seed, now_ns;

/* ---- gpu.c ---- */

extern const struct measuring driver;

uint64_t random_below(uint64_t below);
void gpus_prepare(void);
void put(struct rank *rank, unsigned stream, struct operation operation);
/* What is over by now. */
void gpus_advance(void);
uint64_t gpus_next(void);
/* When an exchange was over for all. */
uint64_t exchange_over(unsigned number);

/* Whose call of the driver comes next. */
void turn_of(struct rank *rank);

/* ---- rank.c ---- */

void rank_begin(struct rank *rank);
void rank_act(struct rank *rank);
bool rank_can_go_on(const struct rank *rank);

#endif
