/* See launch.h. */
#include "launch.h"

#include "foreign_work.h"
#include "interposer/cuda/memory/memory.h"
#include "sleep_until.h"
#include "thread.h"

_Atomic uint64_t compute_streams_ended;

static bool is_captured(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return DRIVER(cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

enum answer { GO, AGAIN, UNCOUNTED };

/* The long way. When limits or contexts change meanwhile, everything is looked up again. */
static enum answer ask(struct launch_ticket *ticket, struct thread *thread)
{
    uint64_t until;
    vcuda_helper_poll();
    if (ticket->queue->lost)
        thread->recent = NULL;
    ticket->now = clock_look(&thread->clock);
    while ((until = queue_ask(ticket->queue, ticket->estimate, ticket->now)) != 0) {
        thread_pause(thread, ticket->queue);
        sleep_until(until);
        ticket->now = clock_look(&thread->clock);
        if (atomic_load_explicit(&compute_generation, memory_order_relaxed) != thread->generation)
            return AGAIN;
    }
    ticket->ns = estimate_ns(ticket->estimate);
    return ticket->queue->open != NULL ? GO : UNCOUNTED;
}

/* A thread that were cancelled on the way would leave its queue, a reservation or a lock half done. */
static enum answer ask_whole(struct launch_ticket *ticket, struct thread *thread)
{
    int cancellation = cancel_off();
    enum answer answer = ask(ticket, thread);
    cancel_back(cancellation);
    return answer;
}

static struct thread *begin(void)
{
    return compute_begin() ? thread_begin() : NULL;
}

bool compute_enter(struct launch_ticket *ticket, const struct launch_key *key, CUstream stream)
{
    struct thread *thread = thread_self;
    ticket->depth = &hook_depth;
    if (hook_nested() || (thread == NULL && (thread = begin()) == NULL))
        return false;
    if (atomic_load_explicit(&compute_captures, memory_order_relaxed) != 0 && is_captured(stream))
        return false;
    for (;;) {
        ticket->queue = thread_queue(thread, stream);
        if (ticket->queue == NULL || ticket->queue->limiter == NULL)
            return false;
        ticket->estimate = thread_estimate(thread, ticket->queue, key)->estimate;
        ticket->ns = estimate_word(ticket->estimate);
        ticket->now = queue_needs_time(ticket->queue, ticket->ns) ? clock_now(&thread->clock) : ticket->queue->now_ns;
        if (queue_goes(ticket->queue, ticket->ns, ticket->now))
            return true;
        enum answer answer = ask_whole(ticket, thread);
        if (answer != AGAIN)
            return answer == GO;
    }
}

/* Until the first one is measured: nothing else tells whether a function was launched before. */
static __attribute__((noinline)) CUresult leave_unknown(const struct launch_ticket *ticket, CUresult error)
{
    queue_took(ticket->queue, ticket->estimate, ticket->ns, ticket->now);
    memory_launched_first();
    return error;
}

CUresult compute_leave(const struct launch_ticket *ticket, CUresult error)
{
    if (__builtin_expect(error == CUDA_SUCCESS && ticket->ns != 0, 1))
        queue_took(ticket->queue, ticket->estimate, ticket->ns, ticket->now);
    else if (error == CUDA_SUCCESS)
        return leave_unknown(ticket, error);
    else
        queue_failed(ticket->queue);
    return error;
}

/* Counted twice: a batch of another thread that begins or ends in between may have it or not. */
void compute_foreign_begin(CUstream stream)
{
    if (thread_self != NULL)
        thread_interrupt(thread_self, stream);
    foreign_work_put(stream);
}

CUresult compute_foreign_end(CUstream stream, CUresult error)
{
    foreign_work_put(stream);
    return error;
}
