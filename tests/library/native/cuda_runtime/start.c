/* The driver, contexts, devices and errors; see runtime.h. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { DEVICES = 64 };

typedef CUresult (*get_function)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static get_function get;
static CUresult started = CUDA_ERROR_NOT_INITIALIZED;
static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
static CUcontext contexts[DEVICES];
static _Thread_local int device;
static _Thread_local cudaError_t last;

void *driver_function(const char *name, int version)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (get(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS || found == NULL) {
        fprintf(stderr, "stand-in runtime: the driver has no %s\n", name);
        abort();
    }
    return found;
}

static void start(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    get = driver == NULL ? NULL : (get_function)dlsym(driver, "cuGetProcAddress_v2");
    started = get == NULL ? CUDA_ERROR_NO_DEVICE : DRIVER(cuInit)(0);
}

CUresult driver_ready(void)
{
    pthread_once(&once, start);
    return started;
}

static CUresult retain(void)
{
    CUresult error = CUDA_SUCCESS;
    pthread_mutex_lock(&retaining);
    if (contexts[device] == NULL)
        error = DRIVER(cuDevicePrimaryCtxRetain)(&contexts[device], device);
    pthread_mutex_unlock(&retaining);
    return error;
}

CUresult context_ready(void)
{
    CUcontext current = NULL;
    CUresult error = driver_ready();
    if (error == CUDA_SUCCESS)
        error = DRIVER(cuCtxGetCurrent)(&current);
    if (error != CUDA_SUCCESS || current != NULL)
        return error;
    error = retain();
    return error == CUDA_SUCCESS ? DRIVER(cuCtxSetCurrent)(contexts[device]) : error;
}

int current_device(void)
{
    return device;
}

cudaError_t answered(CUresult result)
{
    if (result != CUDA_SUCCESS)
        last = (cudaError_t)result;
    return (cudaError_t)result;
}

EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last;
}

static const char *described(cudaError_t error, CUresult (*describe)(CUresult, const char **))
{
    const char *text = NULL;
    return describe((CUresult)error, &text) == CUDA_SUCCESS ? text : "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    return driver_ready() == CUDA_SUCCESS ? described(error, DRIVER(cuGetErrorString)) : "initialization error";
}

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    return driver_ready() == CUDA_SUCCESS ? described(error, DRIVER(cuGetErrorName)) : "cudaErrorInitializationError";
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    return RUN(driver_ready(), DRIVER(cuDriverGetVersion)(version));
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    return RUN(driver_ready(), DRIVER(cuDeviceGetCount)(count));
}

EXPORT cudaError_t cudaGetDevice(int *out)
{
    *out = device;
    return RUN(driver_ready(), CUDA_SUCCESS);
}

EXPORT cudaError_t cudaSetDevice(int wanted)
{
    int count = 0;
    CUresult error = driver_ready();
    if (error == CUDA_SUCCESS)
        error = DRIVER(cuDeviceGetCount)(&count);
    if (error == CUDA_SUCCESS && (wanted < 0 || wanted >= count || wanted >= DEVICES))
        error = CUDA_ERROR_INVALID_DEVICE;
    if (error != CUDA_SUCCESS)
        return answered(error);
    device = wanted;
    DRIVER(cuCtxSetCurrent)(NULL);
    return answered(context_ready());
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int of)
{
    return RUN(driver_ready(), DRIVER(cuDeviceGetAttribute)(value, (CUdevice_attribute)attribute, of));
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int of)
{
    return RUN(driver_ready(), DRIVER(cuDeviceGetPCIBusId)(id, size, of));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int of, int peer)
{
    return RUN(driver_ready(), DRIVER(cuDeviceCanAccessPeer)(can, of, peer));
}

static int attribute(int of, CUdevice_attribute which)
{
    int value = 0;
    DRIVER(cuDeviceGetAttribute)(&value, which, of);
    return value;
}

static void describe(struct cudaDeviceProp *out, int of)
{
    out->major = attribute(of, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    out->minor = attribute(of, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    out->multiProcessorCount = attribute(of, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    out->maxThreadsPerMultiProcessor = attribute(of, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    out->maxThreadsPerBlock = attribute(of, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    out->warpSize = attribute(of, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    out->regsPerMultiprocessor = attribute(of, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    out->l2CacheSize = attribute(of, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    out->sharedMemPerBlock = (size_t)attribute(of, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    out->sharedMemPerBlockOptin = (size_t)attribute(of, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    out->sharedMemPerMultiprocessor = (size_t)attribute(of, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    out->memoryPoolsSupported = attribute(of, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    out->pciBusID = attribute(of, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    for (int i = 0; i < 3; i++) {
        out->maxThreadsDim[i] = attribute(of, (CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i));
        out->maxGridSize[i] = attribute(of, (CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i));
    }
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int of)
{
    memset(out, 0, sizeof *out);
    CUresult error = driver_ready();
    if (error == CUDA_SUCCESS)
        error = DRIVER(cuDeviceGetName)(out->name, sizeof out->name, of);
    if (error == CUDA_SUCCESS)
        error = DRIVER(cuDeviceTotalMem)(&out->totalGlobalMem, of);
    if (error == CUDA_SUCCESS)
        error = DRIVER(cuDeviceGetUuid)((CUuuid *)&out->uuid, of);
    if (error == CUDA_SUCCESS)
        describe(out, of);
    return answered(error);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CUresult error = driver_ready();
    if (error == CUDA_SUCCESS)
        error = get(symbol, out, (int)version, flags, &found);
    if (status != NULL)
        *status = (enum cudaDriverEntryPointQueryResult)found;
    return answered(error);
}
