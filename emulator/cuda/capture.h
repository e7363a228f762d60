/*
 * Stream capture: which streams are being captured, into which graph, and which calls that forbids.
 *
 * Rules are those of "CUDA Driver API, Stream Management": cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode. A call that is forbidden fails,
 * invalidates the captures that it conflicts with and is counted (vcuda_emulator_capture_violations).
 * What an entry point has to do:
 *   a call with a stream      `if (capture_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE) return capture_action(stream, &action);`
 *   a synchronous call that works in the legacy stream (cuMemcpy, cuMemset)      `capture_forbids_legacy(context)`, then `unsafe_call()` is not needed
 *   cuMemAlloc and its like   `error = unsafe_call(); if (error != CUDA_SUCCESS) return error;`
 */
#ifndef VCUDA_EMULATOR_CAPTURE_H
#define VCUDA_EMULATOR_CAPTURE_H

#include <cuda.h>
#include <stdint.h>

#include "graph_action.h"

struct context;
struct stream;

/* NONE, ACTIVE or INVALIDATED. */
CUstreamCaptureStatus capture_of(const struct stream *stream);
/* The stream takes part in a capture: the action becomes a node. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED where the capture failed before. */
CUresult capture_action(struct stream *stream, const struct graph_action *action);
/* cuMemAllocAsync and cuMemFreeAsync in a captured stream: graph_memory_reserve is called, and `dptr` is good from now on. */
CUresult capture_memory_alloc(struct stream *stream, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult capture_memory_free(struct stream *stream, CUdeviceptr pointer);
/* For a call that no captured stream can take: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is invalid. NONE: success. */
CUresult capture_forbids(struct stream *stream);
/* For work in the legacy stream: CUDA_ERROR_STREAM_CAPTURE_IMPLICIT where a blocking stream of the context is being captured. */
CUresult capture_forbids_legacy(struct context *context);
/* For a call that may synchronise behind the application's back ("potentially unsafe"). */
CUresult unsafe_call(void);

#endif
