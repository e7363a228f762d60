/*
 * Marks in flight: streams that a thread marks away from its own launches, while it sleeps for credit. A thread that ends such a stream waits for the mark.
 *
 * In: the stream, from the thread that marks and from the one that ends it. Out: nothing. No lock is held while the driver records, which may block where
 * the GPU's queue is full: only a thread that ends that very stream or its context, or begins a capture, waits for it, SLEEP_MOST_NS at most.
 * The order: the ending thread first says so (compute_streams_ended, compute_captures, timebase.gone) and then looks for marks in flight; the marking thread
 * first says so and then looks whether the stream still exists. One of the two sees the other.
 */
#ifndef VCUDA_COMPUTE_IN_FLIGHT_H
#define VCUDA_COMPUTE_IN_FLIGHT_H

#include "timebase.h"

struct in_flight;

/* NULL: too many at once; it is not marked then. */
struct in_flight *in_flight_begin(const struct timebase *timebase, CUstream stream);
void in_flight_end(struct in_flight *in_flight);   /* NULL is fine */

void in_flight_wait_stream(CUstream stream);
/* For all: any stream may become part of a capture that begins. */
void in_flight_wait(void);
void in_flight_wait_context(const struct timebase *timebase);
/* In a forked child: the threads that had them do not exist there. */
void in_flight_forget(void);

#endif
