/* Graphs whose nodes allocate: noted, so that the helper thread follows their memory. In: the application's calls. Out: the driver's answer, always. */
#include "account.h"
#include "interposer/cuda/hooks.h"
#include "relief.h"

static CUresult noted(CUresult error, bool allocates)
{
    if (error == CUDA_SUCCESS && allocates && !hook_nested() && account_needed())
        relief_note_graphs();
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
