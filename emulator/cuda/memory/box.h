/*
 * Copies of boxes and fills of rectangles, as what a stream or a graph does (graph_action.h).
 *
 * In: parameters of the application. Out: an action that carries a copy of them, with its cost. `planned`: memory of graphs may come with the launch.
 * CUDA_ERROR_INVALID_VALUE: they do not go together, or a side is not all there.
 */
#ifndef VCUDA_EMULATOR_BOX_H
#define VCUDA_EMULATOR_BOX_H

#include <stdbool.h>

#include "../graph_action.h"

CUresult box_copy_action(const CUDA_MEMCPY3D *copy, bool planned, enum copy_route *route, struct graph_action *out);
CUresult box_fill_action(const CUDA_MEMSET_NODE_PARAMS *fill, bool planned, struct graph_action *out);

#endif
