/*
 * Graphs: nodes and what they depend on. The inside; under driver_lock(), which the functions here expect to be held.
 *
 * A node has what it takes to be launched: kernels a copy of their parameters, copies an action (graph_action.h). A graph owns its nodes and child graphs.
 */
#ifndef VCUDA_EMULATOR_GRAPH_H
#define VCUDA_EMULATOR_GRAPH_H

#include "event.h"
#include "graph_action.h"
#include "kernel_launch.h"

struct kernel_call {
    CUfunction handle;
    struct function *function;
    unsigned grid[3], block[3], shared_bytes;
    unsigned char *buffer;
    void **pointers;            /* into the buffer, one for each parameter */
};

struct node {
    struct object object;
    struct graph *graph;
    CUgraphNodeType type;
    struct graph_action action; /* its work for every type */
    struct kernel_call kernel;
    CUhostFn function;
    void *data;
    struct graph *child;
    struct event *event;
    CUdeviceptr memory;         /* of allocation and free nodes */
    size_t memory_bytes;        /* of allocation nodes */
    int memory_device;
    struct node **follows;
    size_t follow_count;
    unsigned number;            /* in topological order, while that is being made use of */
    struct node *next;
};

struct graph {
    struct object object;
    struct node *first, **last;
    unsigned count;
    bool is_child;
};

struct graph *graph_make(void);
void graph_end(struct graph *graph);
struct graph *graph_clone(const struct graph *graph);
/* Depends on the given nodes of the same graph. NULL: no memory. */
struct node *node_make(struct graph *graph, CUgraphNodeType type, struct node *const *follows, size_t count);
void node_end(struct node *node);
bool node_follow(struct node *node, struct node *after);    /* false: no memory */
bool node_set_kernel(struct node *node, const struct launch *launch, const struct work *work);
/* `address` of an allocation node, which it holds, or of a free node. False: no memory. */
bool node_set_memory(struct node *node, CUdeviceptr address);
bool node_set_allocation(struct node *node, const CUDA_MEM_ALLOC_NODE_PARAMS *params);
/* Addresses that a node which follows those may use again: allocated in the graph, and freed before it. How many. */
size_t graph_free_addresses(const struct graph *graph, struct node *const *follows, size_t count, CUdeviceptr *out, size_t room);
/* How often nodes of the graph allocate an address more than they free it. */
int graph_unfreed(const struct graph *graph, CUdeviceptr address);
bool nodes_valid(const struct graph *graph, struct node *const *nodes, size_t count);
/* Numbers the nodes so that each comes behind what it follows. NULL: done; else a node on a cycle. */
struct node *graph_number(struct graph *graph);
bool node_is_before(const struct node *one, const struct node *other);  /* or the same */

struct graph *graph_of(CUgraph handle);     /* NULL: none */
struct node *node_of(CUgraphNode handle);

#endif
