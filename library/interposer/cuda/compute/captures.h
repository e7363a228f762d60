/*
 * The captures of this process, by the stream that each began in.
 *
 * In: their begin and end, the end of streams and contexts. Out: compute_captures, how many there are, so that launches ask whether their stream is being
 * captured while some stream is, and never otherwise.
 * A count that is too high costs a question for each launch. One that is too low (a capture that was begun in a way we do not see) costs accuracy: marks ask
 * for themselves (driver.c), and nothing of ours gets into a graph.
 */
#ifndef VCUDA_COMPUTE_CAPTURES_H
#define VCUDA_COMPUTE_CAPTURES_H

#include "interposer/cuda/hooks.h"

extern _Atomic uint32_t compute_captures;

/* Before the driver hears of it: another thread may launch into the stream at once. Then how that went. */
void captures_begin(void);
void captures_begun(CUstream stream, bool success);

/* The stream is no origin any more, or is gone. CU_STREAM_PER_THREAD is the calling thread's. */
void captures_end(CUstream stream);
/* The context is gone; NULL: all of the device's. */
void captures_end_in(CUdevice device, CUcontext context);
void captures_forget(void);

#endif
