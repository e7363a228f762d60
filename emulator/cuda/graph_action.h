/*
 * What a graph node or a captured call does, in a form that both share: how long it takes, and what it does to memory when its graph is launched.
 * `perform` gets a copy of the payload; it is called once for each launch, in an order that respects the dependencies, before cuGraphLaunch returns.
 */
#ifndef VCUDA_EMULATOR_GRAPH_ACTION_H
#define VCUDA_EMULATOR_GRAPH_ACTION_H

#include <cuda.h>
#include <stddef.h>

#include "stream.h"

enum { ACTION_PAYLOAD = 256 };

struct graph_action {
    CUgraphNodeType type;       /* KERNEL, MEMCPY, MEMSET, HOST, MEM_ALLOC, MEM_FREE ... */
    struct work work;
    void (*perform)(const void *payload, struct stream *stream);    /* NULL: nothing */
    _Alignas(16) unsigned char payload[ACTION_PAYLOAD];
};

#endif
