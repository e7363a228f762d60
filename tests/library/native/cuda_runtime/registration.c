/* What the code that nvcc makes calls when a library is loaded and before a launch, and what the stand-in does not have; see runtime.h. */
#include "runtime.h"

/* None of these is in NVIDIA's headers of the runtime's interface. */
EXPORT void **__cudaRegisterFatBinary(void *image);
EXPORT void __cudaRegisterFatBinaryEnd(void **handle);
EXPORT void __cudaUnregisterFatBinary(void **handle);
EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, void *block,
                                   void *grid, int *size);
EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global);
EXPORT char __cudaInitModule(void **handle);
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function);
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);

void **__cudaRegisterFatBinary(void *image)
{
    static void *none;
    (void)image;
    return &none;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, void *block, void *grid,
                            int *size)
{
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
}
#pragma GCC diagnostic pop

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 0;
}

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function)
{
    *out = (cudaKernel_t)function;
    return cudaSuccess;
}

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(void **)stream = pushed.stream;
    return cudaSuccess;
}

#define MISSING(runtime, parameters)                                                                                              \
    EXPORT cudaError_t runtime parameters                                                                                         \
    {                                                                                                                             \
        return answered(CUDA_ERROR_NOT_SUPPORTED);                                                                                \
    }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
MISSING(cudaDeviceEnablePeerAccess, (int peer, unsigned flags))
MISSING(cudaGetSymbolAddress, (void **out, const void *symbol))
MISSING(cudaGraphDebugDotPrint, (cudaGraph_t graph, const char *path, unsigned flags))
MISSING(cudaGraphNodeGetDependencies, (cudaGraphNode_t node, cudaGraphNode_t *list, cudaGraphEdgeData *edges, size_t *count))
MISSING(cudaMemcpy2DAsync,
        (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream))
MISSING(cudaMemcpyPeerAsync, (void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream))
MISSING(cudaMemcpyToSymbol, (const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind))
MISSING(cudaStreamAddCallback, (cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags))
#pragma GCC diagnostic pop
