/*
 * What the rest of the driver asks of memory/: the end of a context, memory of modules, memory nodes of graphs. All implemented in memory/.
 */
#ifndef VCUDA_EMULATOR_MEMORY_H
#define VCUDA_EMULATOR_MEMORY_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct context;
struct stream;

/* The context is ending: its allocations are freed. The device's memory pools stay. Everything in it is done. */
void memory_context_gone(struct context *context);

/*
 * A stream, an event or a context was waited for (or found done by a query): pools that hold more than their release threshold give memory back.
 * Cheap where no pool holds anything; called outside of core's locks.
 */
void memory_synchronised(struct context *context);

/* Device memory of a module's global variable, zeroed, and its end; charged to the process like cuMemAlloc's. */
CUresult memory_global_make(struct context *context, uint64_t bytes, CUdeviceptr *out);
void memory_global_drop(CUdeviceptr pointer);

/*
 * A graph's allocation node. Reserve: checks the parameters and gives `dptr` an address, nothing behind it: one of `again` that is large enough,
 * as allocations of one graph share an address where one ends before the other begins, or one of its own.
 */
enum { GRAPH_ADDRESSES = 64 };
CUresult graph_memory_reserve(CUDA_MEM_ALLOC_NODE_PARAMS *params, const CUdeviceptr *again, size_t count, bool *is_new);
/* At a launch: memory behind it (CUDA_ERROR_OUT_OF_MEMORY), and at the free node that memory back to the device's graph pool. */
CUresult graph_memory_back(CUdeviceptr pointer, struct stream *stream);
CUresult graph_memory_unback(CUdeviceptr pointer, struct stream *stream);
bool graph_memory_is_backed(CUdeviceptr pointer);
/* The launch that did this is queued in the stream: what it freed is free for all streams when it has ended. */
void graph_memory_launched(struct stream *stream);
/* Whether an allocation node has that address. */
bool graph_memory_is(CUdeviceptr pointer);
/* No graph refers to it any more; what is behind it stays the application's until it frees it. */
void graph_memory_forget(CUdeviceptr pointer);

/* Reads or writes a word of 4 or 8 bytes, at once. False: nothing lies there, or it is not aligned. */
bool memory_word(CUdeviceptr address, unsigned size, bool write, uint64_t *value);

/* What cuGraphAddMemcpyNode and cuGraphAddMemsetNode make of their parameters; parameters are checked. */
struct graph_action;
CUresult graph_copy_action(const CUDA_MEMCPY3D *copy, CUcontext context, struct graph_action *out);
CUresult graph_memset_action(const CUDA_MEMSET_NODE_PARAMS *memset, CUcontext context, struct graph_action *out);

#endif
