/*
 * The executable graphs that have memory nodes, and what they need together: between graphs.c, which charges, and graph_list.c. See graphs.h.
 * In: graphs as they are made, launched and destroyed. Out: bytes. Not here: the charge.
 */
#ifndef VCUDA_MEMORY_GRAPH_LIST_H
#define VCUDA_MEMORY_GRAPH_LIST_H

#include <pthread.h>

#include "account.h"
#include "graphs.h"

struct executable {
    CUgraphExec handle;         /* NULL: destroyed, and may be running */
    struct graph_memory *memory;
    uint64_t stream;            /* of its last launch */
    CUcontext context;          /* of the event */
    CUevent event;              /* NULL: none */
    uint32_t devices;           /* that the launch under way holds, see settle() */
    struct account_span span;   /* of that launch */
    bool launching, running;
    bool ending;                /* its event's context may be about to end: no question is asked of it */
    struct executable *next;
};

/* Over the list and what is in it; no call of the driver that may wait is made with it. The functions below want it held. */
extern pthread_mutex_t graph_list_lock;

struct executable *graph_list_find(CUgraphExec handle);

/* Asks the driver who is done. */
void graph_list_look(void);

/* All that graphs need on the device when this one is launched in its stream. `*beside`: others run that need some of it. */
uint64_t graph_list_needed(const struct executable *executable, const struct graph_part *part, unsigned index, bool *beside);

/* A launch left it allocated; graphs_freed undoes it. */
void graph_list_left(unsigned index, uint64_t bytes);

/* In a child after fork. */
void graph_list_forget(void);

#endif
