/*
 * How much device memory a graph needs while it runs, and what of it is left when it has: read from its nodes.
 *
 * In: a graph, children included. Out: bytes for each device. Not here: when that is charged (graphs.h).
 * The driver has given each allocation node its address; nodes whose lifetimes do not overlap share one ("Address Reuse within a Graph"), and
 * memory comes in whole pages behind addresses. So a graph needs the union of its nodes' pages: the peak, not the sum.
 */
#ifndef VCUDA_MEMORY_GRAPH_NODES_H
#define VCUDA_MEMORY_GRAPH_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi/limits.h"
#include "cuda.h"

struct graph_range {
    CUdeviceptr address;
    uint64_t bytes;
    uint64_t left;          /* pages that stay allocated behind it after a launch, of which no other range counts any */
    int device;             /* the driver's ordinal */
    int balance;            /* how often it is allocated more than it is freed */
};

struct graph_part {
    int device;
    uint64_t transient;     /* free again when the graph has run */
    uint64_t left;          /* the application's, or another graph's, to free */
};

/* `ranges` come first, those with a device; then the addresses that this graph frees and others allocated. */
struct graph_memory {
    size_t range_count, foreign_count;
    unsigned part_count;
    struct graph_part parts[LIMITS_MAX_DEVICES];
    struct graph_range ranges[];
};

/* False: no host memory. `*memory` is NULL for a graph without memory nodes; to be freed by free(). */
bool graph_nodes_read(CUgraph graph, struct graph_memory **memory);

#endif
