/*
 * Graphs whose nodes allocate: noted, so that the helper thread follows their memory. In: the application's calls. Out: the driver's answer, always.
 * Nodes that cuGraphAddNode makes appear as overhead.
 */
#include "account.h"
#include "interposer/cuda/hooks.h"
#include "relief.h"

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t num_dependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS *node_params)
{
    CUresult error = DRIVER(cuGraphAddMemAllocNode, node, graph, dependencies, num_dependencies, node_params);

    if (error == CUDA_SUCCESS && !hook_nested() && account_needed())
        relief_note_graphs();
    return error;
}
