/*
 * Executable graphs whose nodes allocate: charged before their memory is taken, which is at a launch or an upload, never at instantiation.
 *
 * In: executable graphs as they are made, launched and destroyed; frees of what launches left. Out: granted, or CUDA_ERROR_OUT_OF_MEMORY.
 * Not here: what a graph needs (graph_nodes.h), the charge itself (pools.h: what the driver keeps for graphs is a pool).
 * What the driver does (CUDA Programming Guide, Graph Memory Nodes; the sample graphMemoryFootprint): graphs that run one after the other in a
 * stream share memory, those that may run at once do not, what was not freed is not shared; everything stays with the driver until
 * cuDeviceGraphMemTrim. So together they need, for each device: what is allocated, and for each stream the most that a graph which runs there needs.
 * Invariants: a launch that could need more than is charged is charged first, and uploaded before it is launched: what the driver really took
 * is known while it can still be given back. Nothing is charged, refused or asked in a capture. No lock is held while the driver takes memory.
 */
#ifndef VCUDA_MEMORY_GRAPHS_H
#define VCUDA_MEMORY_GRAPHS_H

#include "graph_nodes.h"
#include "interposer/cuda/hooks.h"

struct executable;

/* After it was made or updated. `memory` is ours then; NULL: none. False: no host memory. */
bool graphs_made(CUgraphExec exec, struct graph_memory *memory);
void graphs_gone(CUgraphExec exec);

/* False: no executable graph has memory nodes, nothing below is needed. */
extern _Atomic uint32_t graphs_known;
static inline bool graphs_any(void)
{
    return atomic_load_explicit(&graphs_known, memory_order_relaxed) != 0;
}

struct graph_launch {
    struct executable *executable;  /* NULL: none of ours */
    CUstream stream;
    bool per_thread;
    bool grown;
};

/* Around cuGraphLaunch. False: to be refused, and there is no end. */
bool graphs_begin(struct graph_launch *launch, CUgraphExec exec, CUstream stream, bool per_thread);
CUresult graphs_end(struct graph_launch *launch, CUresult error);

/* Instead of cuGraphUpload. */
CUresult graphs_upload(CUgraphExec exec, CUstream stream, bool per_thread);

/* What a launch left allocated was freed. */
void graphs_freed(unsigned index, uint64_t bytes);

/* What ran in a context has ended when it is gone, and so have its events. */
void graphs_context_ends(CUcontext context, enum context_fate fate);

/* In a child after fork. */
void graphs_forget(void);

#endif
