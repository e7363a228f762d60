/* The entry points of executable graphs: instantiating, updating, launching ("CUDA Driver API, Graph Management"). */
#include <string.h>

#include "capture_state.h"
#include "entry.h"
#include "graph_address.h"
#include "graph_kernel.h"
#include "graph_place.h"
#include "lock.h"
#include "memory.h"
#include "queue.h"

enum { KNOWN_FLAGS = 0xf };

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags, CUgraphNode *error_node)
{
    struct graph *graph = graph_of(handle);
    struct exec *exec;
    struct node *wrong;
    if (out == NULL || graph == NULL || (flags & ~(uint64_t)KNOWN_FLAGS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    CUresult error = exec_make(graph, flags, &exec, &wrong);
    driver_unlock();
    if (error == CUDA_SUCCESS)
        *out = (CUgraphExec)exec;
    if (error_node != NULL)
        *error_node = (CUgraphNode)wrong;
    return error;
}

ENTRY(cuGraphInstantiate)(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log_buffer, size_t buffer_size)
{
    if (log_buffer != NULL && buffer_size > 0)
        log_buffer[0] = '\0';
    return instantiate(exec, graph, 0, error_node);
}

ENTRY(cuGraphInstantiate_v2)(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log_buffer, size_t buffer_size)
{
    return entry_cuGraphInstantiate(exec, graph, error_node, log_buffer, buffer_size);
}

ENTRY(cuGraphInstantiateWithFlags)(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiate(exec, graph, flags, NULL);
}

static CUresult upload(CUgraphExec handle, CUstream stream_handle, bool per_thread);

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, bool per_thread)
{
    struct stream *stream;
    if (params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    CUresult error = CUDA_SUCCESS;
    if ((params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0)
        error = stream_of(params->hUploadStream, per_thread, &stream);
    if (error == CUDA_SUCCESS)
        error = instantiate(exec, graph, params->flags, &params->hErrNode_out);
    if (error == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        error = upload(*exec, params->hUploadStream, per_thread);
        if (error != CUDA_SUCCESS)
            entry_cuGraphExecDestroy(*exec);
    }
    params->result_out = error == CUDA_SUCCESS              ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                         : params->hErrNode_out != NULL ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                        : CUDA_GRAPH_INSTANTIATE_ERROR;
    return error;
}

ENTRY(cuGraphInstantiateWithParams)(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiate_params)
{
    return instantiate_with(exec, graph, instantiate_params, false);
}

ENTRY(cuGraphInstantiateWithParams_ptsz)(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiate_params)
{
    return instantiate_with(exec, graph, instantiate_params, true);
}

ENTRY(cuGraphExecGetFlags)(CUgraphExec handle, uint64_t *flags)
{
    struct exec *exec = exec_of(handle);
    if (exec == NULL || flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

ENTRY(cuGraphExecDestroy)(CUgraphExec handle)
{
    struct exec *exec = exec_of(handle);
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    exec_end(exec);
    driver_unlock();
    graph_address_sweep();
    return CUDA_SUCCESS;
}

static CUresult update(CUgraphExec exec_handle, CUgraph graph_handle, struct node **wrong, CUgraphExecUpdateResult *result)
{
    struct exec *exec = exec_of(exec_handle);
    struct graph *graph = graph_of(graph_handle);
    *wrong = NULL;
    if (exec == NULL || graph == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    *result = exec_update(exec, graph, wrong);
    driver_unlock();
    return *result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

ENTRY(cuGraphExecUpdate)(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node_out, CUgraphExecUpdateResult *update_result_out)
{
    struct node *wrong;
    if (error_node_out == NULL || update_result_out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = update(exec, graph, &wrong, update_result_out);
    *error_node_out = (CUgraphNode)wrong;
    return error;
}

ENTRY(cuGraphExecUpdate_v2)(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result_info)
{
    struct node *wrong;
    if (result_info == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = update(exec, graph, &wrong, &result_info->result);
    result_info->errorNode = (CUgraphNode)wrong;
    result_info->errorFromNode = NULL;
    return error;
}

ENTRY(cuGraphExecKernelNodeSetParams_v2)(CUgraphExec exec_handle, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *node_params)
{
    struct exec *exec = exec_of(exec_handle);
    struct launch launch;
    struct work work;
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = graph_check_kernel(node_params, &launch, &work);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    struct step *step = exec_step(exec, (struct node *)node);
    if (step == NULL || step->type != CU_GRAPH_NODE_TYPE_KERNEL || step->context != launch.function->context)
        error = CUDA_ERROR_INVALID_VALUE;
    else
        step->action.work = work;
    driver_unlock();
    return error;
}

ENTRY(cuGraphExecKernelNodeSetParams)(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *node_params)
{
    if (node_params == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS wide = graph_widen(node_params);
    return entry_cuGraphExecKernelNodeSetParams_v2(exec, node, &wide);
}

static bool is_freed(const struct exec *exec, CUdeviceptr memory)
{
    int unfreed = 0;
    for (unsigned i = 0; i < exec->count; i++) {
        if (exec->steps[i].memory == memory)
            unfreed += exec->steps[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? 1 : -1;
    }
    return unfreed <= 0;
}

static void free_earlier(const struct exec *exec, struct stream *stream)
{
    for (unsigned i = 0; i < exec->count; i++) {
        const struct step *step = &exec->steps[i];
        if (step->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !is_freed(exec, step->memory))
            graph_memory_unback(step->memory, stream); /* where it was launched before and is not free yet */
    }
}

/* A launch that fails leaves nothing allocated. */
static void take_back(const struct exec *exec, unsigned count, struct stream *stream)
{
    for (unsigned i = 0; i < count; i++) {
        if (exec->steps[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            graph_memory_unback(exec->steps[i].memory, stream);
    }
}

/* What the steps do to memory, in their order. */
static CUresult perform(const struct exec *exec, struct stream *stream)
{
    CUresult error = CUDA_SUCCESS;
    if ((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0)
        free_earlier(exec, stream);
    for (unsigned i = 0; i < exec->count && error == CUDA_SUCCESS; i++) {
        const struct step *step = &exec->steps[i];
        if (step->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            error = graph_memory_back(step->memory, stream);
        else if (step->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            error = graph_memory_unback(step->memory, stream);
        else if (step->action.perform != NULL)
            step->action.perform(step->action.payload, stream);
        if (error != CUDA_SUCCESS)
            take_back(exec, i, stream);
    }
    return error;
}

static bool has_memory(const struct exec *exec)
{
    for (unsigned i = 0; i < exec->count; i++) {
        if (exec->steps[i].memory != 0)
            return true;
    }
    return false;
}

static bool is_allocated(const struct exec *exec, CUdeviceptr memory)
{
    for (unsigned i = 0; i < exec->count; i++) {
        if (exec->steps[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && exec->steps[i].memory == memory)
            return true;
    }
    return false;
}

/* The memory that a launch will need is taken from the GPU now, and stays with the device's graph memory. */
static CUresult upload_memory(const struct exec *exec, struct stream *stream)
{
    CUresult error = CUDA_SUCCESS;
    unsigned at = 0;
    for (; at < exec->count && error == CUDA_SUCCESS; at++) {
        if (exec->steps[at].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            error = graph_memory_back(exec->steps[at].memory, stream);
        else if (exec->steps[at].type == CU_GRAPH_NODE_TYPE_MEM_FREE && is_allocated(exec, exec->steps[at].memory))
            graph_memory_unback(exec->steps[at].memory, stream);
    }
    take_back(exec, at, stream);
    return error;
}

/* What an earlier launch left allocated is there already. */
static bool has_memory_in_use(const struct exec *exec)
{
    for (unsigned i = 0; i < exec->count; i++) {
        if (exec->steps[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && graph_memory_is_backed(exec->steps[i].memory))
            return true;
    }
    return false;
}

static CUresult upload(CUgraphExec handle, CUstream stream_handle, bool per_thread)
{
    struct exec *exec = exec_of(handle);
    struct stream *stream;
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = stream_of(stream_handle, per_thread, &stream);
    if (error == CUDA_SUCCESS)
        error = capture_forbids(stream);
    return error == CUDA_SUCCESS && !has_memory_in_use(exec) ? upload_memory(exec, stream) : error;
}

ENTRY(cuGraphUpload)(CUgraphExec graph, CUstream stream)
{
    return upload(graph, stream, false);
}

ENTRY(cuGraphUpload_ptsz)(CUgraphExec exec, CUstream stream)
{
    return upload(exec, stream, true);
}

/* Stretches between host functions, each placed as one. */
static bool queue_steps(struct exec *exec, struct stream *stream)
{
    bool done = true;
    for (unsigned from = 0, to; from < exec->count && done; from = to + 1) {
        for (to = from; to < exec->count && exec->steps[to].type != CU_GRAPH_NODE_TYPE_HOST; to++)
            ;
        if (to > from)
            done = stream_push(stream, &(struct item){.kind = ITEM_GRAPH, .exec = exec, .from = from, .to = to});
        if (to < exec->count && done)
            done = stream_push(stream, &(struct item){.kind = ITEM_HOST, .function = exec->steps[to].function, .data = exec->steps[to].data});
    }
    return done;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, bool per_thread)
{
    struct exec *exec = exec_of(handle);
    struct stream *stream;
    if (exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = stream_of(stream_handle, per_thread, &stream);
    if (error != CUDA_SUCCESS)
        return error;
    driver_lock();
    bool taken = capture_takes(stream, &error);
    if (taken && error == CUDA_SUCCESS)
        error = capture_child(stream, exec->source);
    if (!taken)
        stream_hold_up(stream);
    driver_unlock();
    if (!taken)
        error = perform(exec, stream);
    if (taken || error != CUDA_SUCCESS)
        return error;
    driver_lock();
    if (!queue_steps(exec, stream))
        error = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!queue_holds(stream))
        stream_count_launch(stream, stream->tail);
    driver_unlock();
    if (has_memory(exec))
        graph_memory_launched(stream);
    return error;
}

ENTRY(cuGraphLaunch)(CUgraphExec graph, CUstream stream)
{
    return launch(graph, stream, false);
}

ENTRY(cuGraphLaunch_ptsz)(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, true);
}
