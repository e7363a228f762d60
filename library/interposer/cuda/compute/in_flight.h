/*
 * Streams that a thread marks away from its own launches into them, while it sleeps for credit: who ends such a stream waits until the mark is there.
 *
 * In: the stream, from who marks and from who ends. Out: nothing. No lock is held while the driver records, which may wait where the GPU's queue is full:
 * only who ends that very stream or its context, or begins a capture, waits for it, and no longer than SLEEP_MOST_NS.
 * The order: who ends says so first (compute_streams_ended, compute_captures, timebase.gone) and looks for marks in flight then; who marks says so first, and looks
 * whether the stream is still there then. One of the two sees the other.
 */
#ifndef VCUDA_COMPUTE_IN_FLIGHT_H
#define VCUDA_COMPUTE_IN_FLIGHT_H

#include "timebase.h"

struct in_flight;

/* NULL: too many at once; it is not marked then. */
struct in_flight *in_flight_begin(const struct timebase *timebase, CUstream stream);
void in_flight_end(struct in_flight *in_flight);            /* NULL is fine */

void in_flight_wait_stream(CUstream stream);
/* For all: any stream may become part of a capture that begins. */
void in_flight_wait(void);
void in_flight_wait_context(const struct timebase *timebase);
/* In a forked child: whoever had them is not there. */
void in_flight_forget(void);

#endif
