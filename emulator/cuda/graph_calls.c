/* The entry points that make graphs and look at them ("CUDA Driver API, Graph Management"). Nodes are made in graph_node_calls.c, launching is in exec_calls.c. */
#include <string.h>

#include "entry.h"
#include "graph.h"
#include "graph_address.h"
#include "lock.h"

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
