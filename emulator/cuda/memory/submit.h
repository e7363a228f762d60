/*
 * How a copy or a fill gets into a stream: as a node of the capture that the stream is in, or now.
 *
 * In: a stream of the application and an action. Out: bytes moved by the time the call returns, and their cost on the stream. Not here: what an action does.
 */
#ifndef VCUDA_EMULATOR_SUBMIT_H
#define VCUDA_EMULATOR_SUBMIT_H

#include <stdbool.h>

#include "../graph_action.h"

/* The default stream of a synchronous call, where no capture forbids it. */
CUresult submit_stream_of_call(bool per_thread, struct stream **stream);
bool submit_is_captured(const struct stream *stream);
CUresult submit_action(struct stream *stream, const struct graph_action *action);

#endif
