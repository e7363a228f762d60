/* See launch.h. */
#include "launch.h"

#include "rest.h"
#include "thread.h"

_Atomic uint64_t compute_streams_ended;

static bool is_captured(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return DRIVER(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

enum answer { GO, AGAIN, UNCOUNTED };

/* The long way. When limits or contexts change meanwhile, everything is looked up again. */
static enum answer ask(struct passage *passage, struct thread *thread)
{
    uint64_t until;
    vcuda_helper_poll();
    if (passage->queue->lost)
        thread->recent = NULL;
    passage->now = clock_look(&thread->clock);
    while ((until = queue_ask(passage->queue, passage->estimate, passage->now)) != 0) {
        thread_pause(thread, passage->queue);
        rest_until(until);
        passage->now = clock_look(&thread->clock);
        if (atomic_load_explicit(&compute_generation, memory_order_relaxed) != thread->generation)
            return AGAIN;
    }
    passage->ns = estimate_ns(passage->estimate);
    return passage->queue->open != NULL ? GO : UNCOUNTED;
}

/* A thread that were cancelled on the way would leave its queue, a reservation or a lock half done. */
static enum answer ask_whole(struct passage *passage, struct thread *thread)
{
    int cancellation = cancel_off();
    enum answer answer = ask(passage, thread);
    cancel_back(cancellation);
    return answer;
}

static struct thread *begin(void)
{
    return compute_begin() ? thread_begin() : NULL;
}

bool compute_enter(struct passage *passage, const struct launch_key *key, CUstream stream)
{
    struct thread *thread = thread_self;
    if (hook_nested() || (thread == NULL && (thread = begin()) == NULL))
        return false;
    if (atomic_load_explicit(&compute_captures, memory_order_relaxed) != 0 && is_captured(stream))
        return false;
    for (;;) {
        passage->queue = thread_queue(thread, stream);
        if (passage->queue == NULL || passage->queue->limiter == NULL)
            return false;
        passage->estimate = thread_estimate(thread, passage->queue, key)->estimate;
        passage->ns = estimate_ns(passage->estimate);
        passage->now = queue_needs_time(passage->queue, passage->ns) ? clock_now(&thread->clock) : passage->queue->now_ns;
        if (queue_goes(passage->queue, passage->ns, passage->now))
            return true;
        enum answer answer = ask_whole(passage, thread);
        if (answer != AGAIN)
            return answer == GO;
    }
}

CUresult compute_leave(const struct passage *passage, CUresult error)
{
    if (__builtin_expect(error == CUDA_SUCCESS, 1))
        queue_took(passage->queue, passage->estimate, passage->ns, passage->now);
    else
        queue_failed(passage->queue);
    return error;
}
