/*
 * What a stream is, for an allocation in its order: which device it runs on, whether it captures.
 * In: a stream, and whether the null stream is the thread's own. Out: the answer, by calls that every capture allows.
 */
#ifndef VCUDA_MEMORY_STREAM_DEVICE_H
#define VCUDA_MEMORY_STREAM_DEVICE_H

#include "interposer/cuda/hooks.h"

/* True also where the driver will not say, because some other stream captures: the caller leaves that capture alone. */
bool stream_captures(CUstream stream, bool per_thread);

/* False: the driver cannot say; it will refuse the stream. */
bool stream_device(CUstream stream, CUdevice *device);

#endif
