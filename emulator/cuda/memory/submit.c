/* See submit.h. */
#include "submit.h"

#include "../capture.h"
#include "../context.h"

CUresult submit_stream_of_call(bool per_thread, struct stream **stream)
{
    struct context *context;
    CUresult result = context_require(&context);
    if (result == CUDA_SUCCESS)
        result = stream_of(NULL, per_thread, stream);
    if (result != CUDA_SUCCESS)
        return result;
    return per_thread ? capture_forbids(*stream) : capture_forbids_legacy(context);
}

bool submit_is_captured(const struct stream *stream)
{
    return capture_of(stream) != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult submit_action(struct stream *stream, const struct graph_action *action)
{
    if (submit_is_captured(stream))
        return capture_action(stream, action);
    action->perform(action->payload, stream);
    return stream_enqueue(stream, &action->work, NULL);
}
