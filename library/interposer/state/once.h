/*
 * Something that is done once per process and by one thread, in a word that survives a fork at any instruction: the holder is a pid, so that a
 * child that inherits another's unfinished attempt takes it over. Waiting is bounded: a caller that interrupted its own attempt (a signal handler)
 * goes on undone.
 */
#ifndef VCUDA_STATE_ONCE_H
#define VCUDA_STATE_ONCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct once {
    _Atomic uint32_t holder;    /* pid at work, or 0 */
    int cancel_state;           /* of the thread at work, which is not cancelled meanwhile */
};

/* True: the caller does it, sets `done` and calls once_leave. False: it is done, or somebody has been at it for five seconds. */
bool once_enter(struct once *once, bool (*done)(void));
void once_leave(struct once *once);

#endif
