/*
 * The entry points that add nodes to graphs ("CUDA Driver API, Graph Management"): one for each type, and cuGraphAddNode for all of them.
 * In: parameters, checked here. Out: nodes (graph.h). Not here: what becomes of them at a launch.
 */
#include "entry.h"
#include "graph.h"
#include "graph_kernel.h"
#include "lock.h"
#include "memory.h"

/* A new node; the lock is held from here until finish(). NULL: `error` says why, and the lock is not held. */
static struct node *start(CUgraph handle, CUgraphNodeType type, CUgraphNode *out, const CUgraphNode *dependencies, size_t count, CUresult *error)
{
    struct graph *graph = graph_of(handle);
    struct node *node = NULL;
    *error = CUDA_ERROR_INVALID_VALUE;
    if (out == NULL || graph == NULL)
        return NULL;
    driver_lock();
    if (nodes_valid(graph, (struct node *const *)dependencies, count)) {
        node = node_make(graph, type, (struct node *const *)dependencies, count);
        *error = node == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (node == NULL)
        driver_unlock();
    return node;
}

static CUresult finish(struct node *node, CUresult error, CUgraphNode *out)
{
    if (error == CUDA_SUCCESS)
        *out = (CUgraphNode)node;
    else
        node_end(node);
    driver_unlock();
    return error;
}

ENTRY(cuGraphAddKernelNode_v2)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                               const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    struct launch launch;
    struct work work;
    CUresult error = graph_check_kernel(node_params, &launch, &work);
    if (error != CUDA_SUCCESS)
        return error;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_KERNEL, out, dependencies, num_dependencies, &error);
    if (node == NULL)
        return error;
    return finish(node, node_set_kernel(node, &launch, &work) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, out);
}

ENTRY(cuGraphAddKernelNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                            const CUDA_KERNEL_NODE_PARAMS_v1 *node_params)
{
    if (node_params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS wide = graph_widen(node_params);
    return entry_cuGraphAddKernelNode_v2(node, graph, dependencies, num_dependencies, &wide);
}

ENTRY(cuGraphAddMemcpyNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                            const CUDA_MEMCPY3D *copy_params, CUcontext context)
{
    struct graph_action action = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    CUresult error = copy_params == NULL ? CUDA_ERROR_INVALID_VALUE : graph_copy_action(copy_params, context, &action);
    if (error != CUDA_SUCCESS)
        return error;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_MEMCPY, out, dependencies, num_dependencies, &error);
    if (node == NULL)
        return error;
    node->action = action;
    return finish(node, CUDA_SUCCESS, out);
}

ENTRY(cuGraphAddMemsetNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                            const CUDA_MEMSET_NODE_PARAMS *memset_params, CUcontext context)
{
    struct graph_action action = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    CUresult error = memset_params == NULL ? CUDA_ERROR_INVALID_VALUE : graph_memset_action(memset_params, context, &action);
    if (error != CUDA_SUCCESS)
        return error;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_MEMSET, out, dependencies, num_dependencies, &error);
    if (node == NULL)
        return error;
    node->action = action;
    return finish(node, CUDA_SUCCESS, out);
}

ENTRY(cuGraphAddEmptyNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies)
{
    CUresult error;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_EMPTY, out, dependencies, num_dependencies, &error);
    return node == NULL ? error : finish(node, CUDA_SUCCESS, out);
}

static bool has_memory(const struct graph *graph)
{
    for (const struct node *node = graph->first; node != NULL; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            (node->child != NULL && has_memory(node->child)))
            return true;
    }
    return false;
}

ENTRY(cuGraphAddChildGraphNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies, CUgraph child_graph)
{
    CUresult error;
    const struct graph *child = graph_of(child_graph);
    if (child == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (has_memory(child))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_GRAPH, out, dependencies, num_dependencies, &error);
    if (node == NULL)
        return error;
    node->child = graph_clone(child);
    if (node->child != NULL)
        node->child->is_child = true;
    return finish(node, node->child != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, out);
}

/* The graph itself becomes the node's, with what memory nodes it has. */
static CUresult add_moved(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies, CUgraph child_graph)
{
    CUresult error;
    struct graph *child = graph_of(child_graph);
    if (child == NULL || child->is_child || child_graph == graph)
        return CUDA_ERROR_INVALID_VALUE;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_GRAPH, out, dependencies, num_dependencies, &error);
    if (node == NULL)
        return error;
    node->child = child;
    child->is_child = true;
    return finish(node, CUDA_SUCCESS, out);
}

static size_t free_addresses(CUgraph handle, const CUgraphNode *dependencies, size_t count, CUdeviceptr *out)
{
    struct graph *graph = graph_of(handle);
    size_t found = 0;
    driver_lock();
    if (graph != NULL && nodes_valid(graph, (struct node *const *)dependencies, count))
        found = graph_free_addresses(graph, (struct node *const *)dependencies, count, out, GRAPH_ADDRESSES);
    driver_unlock();
    return found;
}

ENTRY(cuGraphAddMemAllocNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                              CUDA_MEM_ALLOC_NODE_PARAMS *node_params)
{
    CUdeviceptr again[GRAPH_ADDRESSES];
    bool is_new = true;
    size_t count = free_addresses(graph, dependencies, num_dependencies, again);
    CUresult error = node_params == NULL ? CUDA_ERROR_INVALID_VALUE : graph_memory_reserve(node_params, again, count, &is_new);
    if (error != CUDA_SUCCESS)
        return error;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, out, dependencies, num_dependencies, &error);
    if (node != NULL)
        error = finish(node, node_set_allocation(node, node_params) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, out);
    if (error != CUDA_SUCCESS && is_new)
        graph_memory_forget(node_params->dptr);
    return error;
}

/* Also what another graph allocates is freed once. */
static bool frees_already(const struct node *node, CUdeviceptr pointer)
{
    bool allocates = false, frees = false;
    for (const struct node *at = node->graph->first; at != NULL; at = at->next) {
        allocates |= at->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && at->memory == pointer;
        frees |= at != node && at->type == CU_GRAPH_NODE_TYPE_MEM_FREE && at->memory == pointer;
    }
    return allocates ? graph_unfreed(node->graph, pointer) < 0 : frees;
}

ENTRY(cuGraphMemAllocNodeGetParams)(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    const struct node *node = node_of(handle);
    if (node == NULL || params_out == NULL || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    *params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, node->memory_device}},
        .bytesize = node->memory_bytes,
        .dptr = node->memory,
    };
    return CUDA_SUCCESS;
}

ENTRY(cuGraphMemFreeNodeGetParams)(CUgraphNode handle, CUdeviceptr *dptr_out)
{
    const struct node *node = node_of(handle);
    if (node == NULL || dptr_out == NULL || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *dptr_out = node->memory;
    return CUDA_SUCCESS;
}

ENTRY(cuGraphChildGraphNodeGetGraph)(CUgraphNode handle, CUgraph *graph)
{
    const struct node *node = node_of(handle);
    if (node == NULL || graph == NULL || node->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = (CUgraph)node->child;
    return CUDA_SUCCESS;
}

ENTRY(cuGraphAddMemFreeNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies, CUdeviceptr pointer)
{
    CUresult error;
    if (!graph_memory_is(pointer))
        return CUDA_ERROR_INVALID_VALUE;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, out, dependencies, num_dependencies, &error);
    if (node == NULL)
        return error;
    node->memory = pointer;
    return finish(node, frees_already(node, pointer) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS, out);
}

static size_t used_bytes(const CUgraphNodeParams *params)
{
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return sizeof params->kernel;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sizeof params->memcpy;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return sizeof params->memset;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return sizeof params->graph;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return sizeof params->alloc;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return sizeof params->free;
    default:
        return 0;
    }
}

static bool rest_is_zero(const CUgraphNodeParams *params)
{
    const unsigned char *bytes = (const unsigned char *)params->reserved1;
    bool zero = (params->reserved0[0] | params->reserved0[1] | params->reserved0[2]) == 0 && params->reserved2 == 0;
    for (size_t i = used_bytes(params); i < sizeof params->reserved1 && zero; i++)
        zero = bytes[i] == 0;
    return zero;
}

/* As the function of the type. Edges have no data here: all are full dependencies. */
ENTRY(cuGraphAddNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *params)
{
    if (params == NULL || !rest_is_zero(params))
        return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return entry_cuGraphAddKernelNode_v2(out, graph, dependencies, count, (const CUDA_KERNEL_NODE_PARAMS *)&params->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return params->memcpy.flags != 0 || params->memcpy.reserved != 0
                   ? CUDA_ERROR_INVALID_VALUE
                   : entry_cuGraphAddMemcpyNode(out, graph, dependencies, count, &params->memcpy.copyParams, params->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return entry_cuGraphAddMemsetNode(out, graph, dependencies, count, (const CUDA_MEMSET_NODE_PARAMS *)&params->memset, params->memset.ctx);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return entry_cuGraphAddEmptyNode(out, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
                   ? add_moved(out, graph, dependencies, count, params->graph.graph)
                   : entry_cuGraphAddChildGraphNode(out, graph, dependencies, count, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return entry_cuGraphAddMemAllocNode(out, graph, dependencies, count, (CUDA_MEM_ALLOC_NODE_PARAMS *)&params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return entry_cuGraphAddMemFreeNode(out, graph, dependencies, count, params->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

ENTRY(cuGraphAddNode_v2)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependency_data,
                         size_t num_dependencies, CUgraphNodeParams *node_params)
{
    (void)dependency_data;
    return entry_cuGraphAddNode(out, graph, dependencies, num_dependencies, node_params);
}

ENTRY(cuGraphAddNode_v3)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependency_data,
                         size_t num_dependencies, CUgraphNodeParams *node_params)
{
    return entry_cuGraphAddNode_v2(out, graph, dependencies, dependency_data, num_dependencies, node_params);
}
