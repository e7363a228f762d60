/* Streams, events, graphs and launches; see runtime.h. */
#include <pthread.h>
#include <string.h>

#include "runtime.h"

FORWARD(cudaStreamCreate, (cudaStream_t * out), DRIVER(cuStreamCreate)(out, 0))
FORWARD(cudaStreamCreateWithPriority, (cudaStream_t * out, unsigned flags, int priority), DRIVER(cuStreamCreateWithPriority)(out, flags, priority))
FORWARD(cudaStreamDestroy, (cudaStream_t stream), DRIVER(cuStreamDestroy)(stream))
FORWARD(cudaStreamSynchronize, (cudaStream_t stream), DRIVER(cuStreamSynchronize)(stream))
FORWARD(cudaStreamQuery, (cudaStream_t stream), DRIVER(cuStreamQuery)(stream))
FORWARD(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), DRIVER(cuStreamWaitEvent)(stream, event, flags))
FORWARD(cudaStreamGetPriority, (cudaStream_t stream, int *out), DRIVER(cuStreamGetPriority)(stream, out))
FORWARD(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), DRIVER(cuCtxGetStreamPriorityRange)(least, greatest))
FORWARD(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *out),
        DRIVER(cuStreamIsCapturing)(stream, (CUstreamCaptureStatus *)out))
FORWARD(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
        DRIVER(cuStreamBeginCapture)(stream, (CUstreamCaptureMode)mode))
FORWARD(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *out), DRIVER(cuStreamEndCapture)(stream, out))
FORWARD(cudaStreamGetCaptureInfo,
        (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
         const cudaGraphEdgeData **edges, size_t *count),
        DRIVER(cuStreamGetCaptureInfo)(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, graph, nodes, (const CUgraphEdgeData **)edges, count))
FORWARD(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode),
        DRIVER(cuThreadExchangeStreamCaptureMode)((CUstreamCaptureMode *)mode))
FORWARD(cudaDeviceSynchronize, (void), ((CUresult(*)(void))driver_function("cuCtxSynchronize", 12000))())

FORWARD(cudaEventCreate, (cudaEvent_t * out), DRIVER(cuEventCreate)(out, 0))
FORWARD(cudaEventCreateWithFlags, (cudaEvent_t * out, unsigned flags), DRIVER(cuEventCreate)(out, flags))
FORWARD(cudaEventDestroy, (cudaEvent_t event), DRIVER(cuEventDestroy)(event))
FORWARD(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), DRIVER(cuEventRecord)(event, stream))
FORWARD(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags), DRIVER(cuEventRecordWithFlags)(event, stream, flags))
FORWARD(cudaEventQuery, (cudaEvent_t event), DRIVER(cuEventQuery)(event))
FORWARD(cudaEventSynchronize, (cudaEvent_t event), DRIVER(cuEventSynchronize)(event))
FORWARD(cudaEventElapsedTime, (float *out, cudaEvent_t begin, cudaEvent_t end), DRIVER(cuEventElapsedTime)(out, begin, end))

FORWARD(cudaGraphInstantiateWithFlags, (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
        DRIVER(cuGraphInstantiateWithFlags)(out, graph, flags))
FORWARD(cudaGraphLaunch, (cudaGraphExec_t executable, cudaStream_t stream), DRIVER(cuGraphLaunch)(executable, stream))
FORWARD(cudaGraphDestroy, (cudaGraph_t graph), DRIVER(cuGraphDestroy)(graph))
FORWARD(cudaGraphExecDestroy, (cudaGraphExec_t executable), DRIVER(cuGraphExecDestroy)(executable))
FORWARD(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count), DRIVER(cuGraphGetNodes)(graph, nodes, count))

FORWARD(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void *data), DRIVER(cuLaunchHostFunc)(stream, function, data))
FORWARD(cudaProfilerStart, (void), CUDA_SUCCESS)
FORWARD(cudaProfilerStop, (void), CUDA_SUCCESS)

/* ---- kernels: one for all ---- */

enum { DEVICES = 64 };

static CUresult any_kernel(CUfunction *out)
{
    static const char text[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry any()\n{\nret;\n}\n";
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    static CUfunction loaded[DEVICES];
    CUmodule module;
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&loading);
    CUfunction *own = &loaded[current_device()];
    if (*own == NULL)
        error = DRIVER(cuModuleLoadData)(&module, text);
    if (*own == NULL && error == CUDA_SUCCESS)
        error = DRIVER(cuModuleGetFunction)(own, module, "any");
    *out = *own;
    pthread_mutex_unlock(&loading);
    return error;
}

static CUresult launch(dim3 grid, dim3 block, cudaStream_t stream)
{
    CUfunction kernel;
    CUresult error = any_kernel(&kernel);
    if (error != CUDA_SUCCESS)
        return error;
    return DRIVER(cuLaunchKernel)(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, 0, stream, NULL, NULL);
}

FORWARD(cudaLaunchKernel, (const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream),
        ((void)function, (void)arguments, (void)shared, launch(grid, block, stream)))
FORWARD(cudaLaunchCooperativeKernel, (const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream),
        ((void)function, (void)arguments, (void)shared, launch(grid, block, stream)))
FORWARD(cudaLaunchKernelExC, (const cudaLaunchConfig_t *configuration, const void *function, void **arguments),
        ((void)function, (void)arguments, launch(configuration->gridDim, configuration->blockDim, configuration->stream)))

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function)
{
    enum { THREADS = 1024, REGISTERS = 32 };
    (void)function;
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = THREADS;
    out->numRegs = REGISTERS;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value)
{
    (void)function;
    (void)which;
    (void)value;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function, int block, size_t shared, unsigned flags)
{
    (void)function;
    (void)block;
    (void)shared;
    (void)flags;
    *out = 2;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *function, int block, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, function, block, shared, 0);
}
