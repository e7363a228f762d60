/* Items that wait in streams for something that has no place in V yet. Under driver_lock(). */
#ifndef VCUDA_EMULATOR_QUEUE_H
#define VCUDA_EMULATOR_QUEUE_H

#include "stream_state.h"

/* Whether new work of the stream has to wait behind items, its own or another stream's. */
bool queue_holds(const struct stream *stream);
/* Waits, sleeping, until what holds the stream now is placed. */
void queue_settle(struct stream *stream);
bool queue_point_is_placed(const struct stream_point *point);
/* The function of the first item was called. */
void queue_pop(struct stream *stream);

#endif
