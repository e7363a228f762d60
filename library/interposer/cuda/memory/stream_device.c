/* See stream_device.h. */
#include "stream_device.h"

bool stream_captures(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult error;

    if (!HAS(cuStreamIsCapturing))
        return false;
    error = per_thread && HAS(cuStreamIsCapturing_ptsz) ? DRIVER(cuStreamIsCapturing_ptsz, stream, &status)
                                                        : DRIVER(cuStreamIsCapturing, stream, &status);
    return error != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A context says its device only while it is current. */
static bool context_device(CUcontext context, CUdevice *device)
{
    CUcontext current = NULL, popped;

    DRIVER(cuCtxGetCurrent, &current);
    if (current == context)
        return DRIVER(cuCtxGetDevice, device) == CUDA_SUCCESS;
    if (DRIVER(cuCtxPushCurrent_v2, context) != CUDA_SUCCESS)
        return false;
    CUresult error = DRIVER(cuCtxGetDevice, device);
    DRIVER(cuCtxPopCurrent_v2, &popped);
    return error == CUDA_SUCCESS;
}

bool stream_device(CUstream stream, CUdevice *device)
{
    CUcontext context;

    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return DRIVER(cuCtxGetDevice, device) == CUDA_SUCCESS;
    if (HAS(cuStreamGetDevice))
        return DRIVER(cuStreamGetDevice, stream, device) == CUDA_SUCCESS;
    return DRIVER(cuStreamGetCtx, stream, &context) == CUDA_SUCCESS && context_device(context, device);
}
