/* The entry points that make graphs and look at them ("CUDA Driver API, Graph Management"). Launching is in exec_calls.c. */
#include <string.h>

#include "entry.h"
#include "graph.h"
#include "graph_address.h"
#include "graph_kernel.h"
#include "lock.h"
#include "memory.h"

ENTRY(cuGraphCreate)(CUgraph *graph, unsigned int flags)
{
    if (graph == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = (CUgraph)graph_make();
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

ENTRY(cuGraphDestroy)(CUgraph handle)
{
    struct graph *graph = graph_of(handle);
    if (graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->is_child)
        return CUDA_ERROR_NOT_PERMITTED;
    driver_lock();
    graph_end(graph);
    driver_unlock();
    graph_address_sweep();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphClone)(CUgraph *graph_clone_out, CUgraph original_graph)
{
    struct graph *graph = graph_of(original_graph);
    if (graph_clone_out == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    *graph_clone_out = (CUgraph)graph_clone(graph);
    driver_unlock();
    return *graph_clone_out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

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
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
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

ENTRY(cuGraphAddMemAllocNode)(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                              CUDA_MEM_ALLOC_NODE_PARAMS *node_params)
{
    CUresult error = node_params == NULL ? CUDA_ERROR_INVALID_VALUE : graph_memory_reserve(node_params);
    if (error != CUDA_SUCCESS)
        return error;
    struct node *node = start(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, out, dependencies, num_dependencies, &error);
    if (node == NULL) {
        graph_memory_forget(node_params->dptr);
        return error;
    }
    error = finish(node, node_set_memory(node, node_params->dptr) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, out);
    if (error != CUDA_SUCCESS)
        graph_memory_forget(node_params->dptr);
    return error;
}

static bool frees_already(const struct node *node, CUdeviceptr pointer)
{
    for (const struct node *at = node->graph->first; at != NULL; at = at->next) {
        if (at != node && at->type == CU_GRAPH_NODE_TYPE_MEM_FREE && at->memory == pointer)
            return true;
    }
    return false;
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

static bool is_followed(const struct node *node, const struct node *after)
{
    for (size_t i = 0; i < node->follow_count; i++) {
        if (node->follows[i] == after)
            return true;
    }
    return false;
}

ENTRY(cuGraphAddDependencies)(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t num_dependencies)
{
    struct graph *graph = graph_of(handle);
    CUresult error = CUDA_SUCCESS;
    if (graph == NULL || (num_dependencies > 0 && (from == NULL || to == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    for (size_t i = 0; i < num_dependencies && error == CUDA_SUCCESS; i++) {
        struct node *before = node_of(from[i]), *after = node_of(to[i]);
        if (before == NULL || after == NULL || before->graph != graph || after->graph != graph || before == after || is_followed(after, before))
            error = CUDA_ERROR_INVALID_VALUE;
        else if (!node_follow(after, before))
            error = CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_unlock();
    return error;
}

ENTRY(cuGraphAddDependencies_v2)(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edge_data,
                                 size_t num_dependencies)
{
    (void)edge_data; /* all edges are full dependencies here */
    return entry_cuGraphAddDependencies(graph, from, to, num_dependencies);
}

ENTRY(cuGraphGetNodes)(CUgraph handle, CUgraphNode *nodes, size_t *num_nodes)
{
    struct graph *graph = graph_of(handle);
    if (graph == NULL || num_nodes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    size_t room = nodes == NULL ? 0 : *num_nodes, count = 0;
    for (struct node *at = graph->first; at != NULL; at = at->next, count++) {
        if (count < room)
            nodes[count] = (CUgraphNode)at;
    }
    for (size_t i = count; i < room; i++)
        nodes[i] = NULL;
    if (nodes == NULL || count < room)
        *num_nodes = count;
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphNodeGetType)(CUgraphNode handle, CUgraphNodeType *type)
{
    struct node *node = node_of(handle);
    if (node == NULL || type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

ENTRY(cuGraphDestroyNode)(CUgraphNode handle)
{
    struct node *node = node_of(handle);
    if (node == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_NOT_SUPPORTED;
    driver_lock();
    node_end(node);
    driver_unlock();
    return CUDA_SUCCESS;
}

ENTRY(cuGraphKernelNodeGetParams_v2)(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *out)
{
    struct node *node = node_of(handle);
    if (node == NULL || out == NULL || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct kernel_call *kernel = &node->kernel;
    bool is_kernel = object_is(kernel->handle, OBJECT_KERNEL);
    *out = (CUDA_KERNEL_NODE_PARAMS){
        .func = is_kernel ? NULL : kernel->handle,
        .gridDimX = kernel->grid[0],
        .gridDimY = kernel->grid[1],
        .gridDimZ = kernel->grid[2],
        .blockDimX = kernel->block[0],
        .blockDimY = kernel->block[1],
        .blockDimZ = kernel->block[2],
        .sharedMemBytes = kernel->shared_bytes,
        .kernelParams = kernel->pointers,
        .kern = is_kernel ? (CUkernel)kernel->handle : NULL,
        .ctx = context_handle(kernel->function->context),
    };
    return CUDA_SUCCESS;
}

ENTRY(cuGraphKernelNodeGetParams)(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out)
{
    CUDA_KERNEL_NODE_PARAMS wide;
    CUresult error = out == NULL ? CUDA_ERROR_INVALID_VALUE : entry_cuGraphKernelNodeGetParams_v2(node, &wide);
    if (error != CUDA_SUCCESS)
        return error;
    if (wide.func == NULL)
        wide.func = (CUfunction)wide.kern;
    memcpy(out, &wide, sizeof *out);
    return CUDA_SUCCESS;
}
