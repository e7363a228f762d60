/* The parameters of kernel nodes, checked, for graphs and for executable ones. Takes no lock: a kernel's library may have to be loaded. */
#ifndef VCUDA_EMULATOR_GRAPH_KERNEL_H
#define VCUDA_EMULATOR_GRAPH_KERNEL_H

#include "kernel_launch.h"

CUresult graph_check_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct launch *launch, struct work *work);
CUDA_KERNEL_NODE_PARAMS graph_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *params);

#endif
