/*
 * A stand-in for NVIDIA's libcudart.so.13, with what PyTorch calls: NVIDIA's own begins on no emulated driver.
 *
 * In: calls of the runtime's interface, declared by NVIDIA's headers. Out: calls of the driver's, which is found as the real runtime finds it: dlopen of
 * libcuda.so.1, then cuGetProcAddress for CUDA 13.0. Not here: instructions; every kernel is one that does nothing for the emulator's default time.
 */
#ifndef VCUDA_TEST_CUDA_RUNTIME_H
#define VCUDA_TEST_CUDA_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#define EXPORT __attribute__((visibility("default")))

/* The driver's function in the generation that cuda.h of this release declares under its plain name. */
void *driver_function(const char *name, int version);
#define DRIVER(name) ((__typeof__(&name))driver_function(#name, 13000))

/* The driver is initialised, or why not. */
CUresult driver_ready(void);
/* And the device's primary context is current. */
CUresult context_ready(void);
int current_device(void);
/* Keeps an error for cudaGetLastError. */
cudaError_t answered(CUresult result);

#define RUN(ready, call)                                                                                                          \
    ({                                                                                                                            \
        CUresult ready_ = (ready);                                                                                                \
        answered(ready_ != CUDA_SUCCESS ? ready_ : (call));                                                                       \
    })

/* A function of the runtime that is one of the driver's, in the current context. */
#define FORWARD(runtime, parameters, call)                                                                                        \
    EXPORT cudaError_t runtime parameters                                                                                         \
    {                                                                                                                             \
        return RUN(context_ready(), call);                                                                                        \
    }

#endif
