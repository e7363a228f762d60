/*
 * One cooperative kernel on two limited GPUs at once, of which the second is in debt: waiting for it takes the first one's batch away.
 * Out: the number of launches, and 0; or what failed on stderr, and 1.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>

#include "programs/program.h"

enum { DEVICES = 2, DEBT = 60, LAUNCHES = 10 };

static const char kernel[] =
    MODULE_HEAD ".visible .entry work(.param .u64 ns)\n{\n// vcuda-emulator: ns = 1 * param 0 wide\nret;\n}\n";

int main(void)
{
    CUcontext context;
    CUmodule module;
    uint64_t ns = 2000000;
    void *parameters[] = {&ns};
    CUDA_LAUNCH_PARAMS launches[DEVICES];

    check(cuInit(0), "cuInit");
    for (int i = 0; i < DEVICES; i++) {
        launches[i] = (CUDA_LAUNCH_PARAMS){.gridDimX = 16, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1, .blockDimZ = 1,
                                           .kernelParams = parameters};
        check(cuDevicePrimaryCtxRetain(&context, i), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        check(cuModuleLoadData(&module, kernel), "cuModuleLoadData");
        check(cuModuleGetFunction(&launches[i].function, module, "work"), "cuModuleGetFunction");
        check(cuStreamCreate(&launches[i].hStream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    CUDA_LAUNCH_PARAMS *last = &launches[DEVICES - 1];
    for (int i = 0; i < DEBT; i++)
        check(cuLaunchKernel(last->function, 1024, 1, 1, 256, 1, 1, 0, last->hStream, parameters, NULL), "cuLaunchKernel");
    for (int i = 0; i < LAUNCHES; i++)
        check(cuLaunchCooperativeKernelMultiDevice(launches, DEVICES, 0), "cuLaunchCooperativeKernelMultiDevice");
    printf("%d\n", LAUNCHES);
    return 0;
}
