/*
 * Graphs: nodes that allocate are noted, so that the helper thread follows their memory; executable graphs are read when they are made, and charged
 * when they are uploaded (launches: compute/launch_hooks.c). In: the application's calls. Out: the driver's answer, or CUDA_ERROR_OUT_OF_MEMORY.
 */
#include <stdlib.h>

#include "account.h"
#include "graphs.h"
#include "interposer/cuda/hooks.h"
#include "pools.h"
#include "reclaim.h"

static CUresult noted(CUresult error, bool allocates)
{
    if (error == CUDA_SUCCESS && allocates && !hook_nested() && account_needed())
        reclaim_note_graphs();
    return error;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS *node_params)
{
    return noted(DRIVER(cuGraphAddMemAllocNode, node, graph, dependencies, num_dependencies, node_params), true);
}

static bool allocates(const CUgraphNodeParams *params)
{
    return params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                        CUgraphNodeParams *node_params)
{
    return noted(DRIVER(cuGraphAddNode, node, graph, dependencies, num_dependencies, node_params), allocates(node_params));
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependency_data,
                           size_t num_dependencies, CUgraphNodeParams *node_params)
{
    return noted(DRIVER(cuGraphAddNode_v2, node, graph, dependencies, dependency_data, num_dependencies, node_params), allocates(node_params));
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependency_data,
                           size_t num_dependencies, CUgraphNodeParams *node_params)
{
    return noted(DRIVER(cuGraphAddNode_v3, node, graph, dependencies, dependency_data, num_dependencies, node_params), allocates(node_params));
}

/* ---- executable graphs ---- */

static bool not_ours(const void *out)
{
    return hook_nested() || out == NULL || !account_needed() || !HAS(cuGraphMemAllocNodeGetParams);
}

static CUresult record(CUgraphExec exec, struct graph_memory *memory)
{
    if (memory == NULL)
        return CUDA_SUCCESS;
    reclaim_note_graphs();
    if (graphs_made(exec, memory))
        return CUDA_SUCCESS;
    free(memory);
    DRIVER(cuGraphExecDestroy, exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult made(CUresult error, const CUgraphExec *exec, CUgraph graph)
{
    struct graph_memory *memory;

    if (error != CUDA_SUCCESS || not_ours(exec))
        return error;
    if (graph_nodes_read(graph, &memory))
        return record(*exec, memory);
    DRIVER(cuGraphExecDestroy, *exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log_buffer, size_t buffer_size)
{
    return made(DRIVER(cuGraphInstantiate, exec, graph, error_node, log_buffer, buffer_size), exec, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log_buffer, size_t buffer_size)
{
    return made(DRIVER(cuGraphInstantiate_v2, exec, graph, error_node, log_buffer, buffer_size), exec, graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return made(DRIVER(cuGraphInstantiateWithFlags, exec, graph, flags), exec, graph);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, bool per_thread)
{
    return per_thread ? DRIVER(cuGraphInstantiateWithParams_ptsz, exec, graph, params) : DRIVER(cuGraphInstantiateWithParams, exec, graph, params);
}

/* The upload that it asks for comes after, once it is charged; no executable graph remembers whether it was uploaded. */
static CUresult upload_after(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, struct graph_memory *memory, bool per_thread)
{
    params->flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult error = instantiate_with(exec, graph, params, per_thread);
    params->flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    if (error != CUDA_SUCCESS) {
        free(memory);
        return error;
    }
    error = record(*exec, memory);
    if (error != CUDA_SUCCESS)
        return error;
    error = graphs_upload(*exec, params->hUploadStream, per_thread);
    if (error != CUDA_SUCCESS) {
        graphs_gone(*exec);
        DRIVER(cuGraphExecDestroy, *exec);
        params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    }
    return error;
}

static CUresult with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, bool per_thread)
{
    struct graph_memory *memory = NULL;

    if (not_ours(exec) || params == NULL || (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0)
        return made(instantiate_with(exec, graph, params, per_thread), exec, graph);
    if (!graph_nodes_read(graph, &memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return memory == NULL ? instantiate_with(exec, graph, params, per_thread) : upload_after(exec, graph, params, memory, per_thread);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiate_params)
{
    return with_params(exec, graph, instantiate_params, false);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiate_params)
{
    return with_params(exec, graph, instantiate_params, true);
}

/* Its nodes are the graph's now. Without host memory to remember them it goes on with those it had. */
static CUresult updated(CUresult error, CUgraphExec exec, CUgraph graph)
{
    struct graph_memory *memory;

    if (error == CUDA_SUCCESS && !not_ours(exec) && graphs_any() && graph_nodes_read(graph, &memory) && !graphs_made(exec, memory))
        free(memory);
    return error;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node_out, CUgraphExecUpdateResult *update_result_out)
{
    return updated(DRIVER(cuGraphExecUpdate, exec, graph, error_node_out, update_result_out), exec, graph);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result_info)
{
    return updated(DRIVER(cuGraphExecUpdate_v2, exec, graph, result_info), exec, graph);
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream)
{
    return graphs_any() ? graphs_upload(graph, stream, false) : DRIVER(cuGraphUpload, graph, stream);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return graphs_any() ? graphs_upload(exec, stream, true) : DRIVER(cuGraphUpload_ptsz, exec, stream);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    unsigned index;
    CUresult error = DRIVER(cuDeviceGraphMemTrim, device);

    if (error == CUDA_SUCCESS && !hook_nested() && pools_any() && account_verdict(device, &index) == VERDICT_COUNT)
        reclaim_read(index);
    return error;
}
