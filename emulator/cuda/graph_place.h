/* Executable graphs: a graph made flat, its children included, in an order in which it can be placed. Under driver_lock(). */
#ifndef VCUDA_EMULATOR_GRAPH_PLACE_H
#define VCUDA_EMULATOR_GRAPH_PLACE_H

#include "graph.h"

struct step {
    CUgraphNodeType type;
    struct graph_action action;
    CUhostFn function;
    void *data;
    struct event *event;
    CUdeviceptr memory;
    const struct node *node;    /* of the graph it was made from, for finding it alone */
    CUfunction handle;
    struct context *context;    /* of a kernel */
    unsigned *follows, follow_count;
    uint64_t end;               /* of the launch that is being placed */
};

struct exec {
    struct object object;
    struct graph *source;       /* a copy: what it becomes where it is launched into a capture */
    struct step *steps;
    unsigned count, room;
    uint64_t flags;
    uint64_t tail;              /* V at which its last launch ends: launches of one graph follow each other */
    const struct gpu *gpu;      /* that it ran on last */
    unsigned holds;
    bool ended;
};

CUresult exec_make(struct graph *graph, uint64_t flags, struct exec **out, struct node **wrong);
void exec_end(struct exec *exec);
void exec_hold(struct exec *exec);
void exec_let_go(struct exec *exec);
/* Makes the steps of `exec` those of the graph, which must have the same form. */
CUgraphExecUpdateResult exec_update(struct exec *exec, struct graph *graph, struct node **wrong);
struct step *exec_step(struct exec *exec, const struct node *node);
struct exec *exec_of(CUgraphExec handle);

/* Places steps [from, to) behind the stream's work: each as soon as what it follows has ended and its engine is free. */
void graph_place(struct stream *stream, struct exec *exec, unsigned from, unsigned to);

#endif
