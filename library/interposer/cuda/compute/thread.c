/* See thread.h. */
#include "thread.h"

#include <pthread.h>
#include <stdlib.h>

#include "in_flight.h"
#include "interposer/cuda/hooks.h"
#include "sleep_until.h"

_Thread_local struct thread *thread_self;

static pthread_key_t ending;
static _Atomic bool has_key;    /* keys are scarce: without one what a thread had stays when it ends */
static pthread_once_t keyed = PTHREAD_ONCE_INIT;

static void end_queue(struct thread_queue *queue)
{
    if (queue->used && queue->queue.limiter != NULL)
        queue_end(&queue->queue);
    queue->used = false;
}

static void end_queues(struct thread *thread)
{
    thread->recent = NULL;
    for (unsigned set = 0; set < THREAD_SETS; set++) {
        for (unsigned way = 0; way < THREAD_WAYS; way++)
            end_queue(&thread->queues[set][way]);
    }
}

static void end(void *ended)
{
    struct thread *thread = ended;
    if (thread != thread_self)
        return;
    end_queues(thread);
    thread_self = NULL;
    free(thread);
}

/* Nothing that would forbid a mark began since something was last launched here. */
static bool is_there(const struct stream_queue *queue)
{
    return atomic_load(&compute_captures) == 0 && queue->streams_ended == atomic_load(&compute_streams_ended) && !atomic_load(&queue->timebase->gone);
}

/* A default stream is the current context's. */
static bool is_current(const struct thread_queue *place)
{
    CUcontext current = NULL;
    return !thread_is_default(place->queue.stream) || (DRIVER(cuCtxGetCurrent, &current) == CUDA_SUCCESS && current == place->context);
}

/*
 * A stream that may be gone, or in a capture, is not marked. Neither is one that is behind: its queue may be full, and the mark would wait. Nor is the legacy
 * one, away from a launch into it: a mark there orders all blocking streams of the context, which the program did not ask for and may not survive.
 */
static bool may_be_marked(const struct thread_queue *place)
{
    const struct stream_queue *queue = &place->queue;
    return queue->stream != NULL && queue->stream != CU_STREAM_LEGACY && (queue->last == NULL || mark_is_reached(queue->last)) && is_there(queue) &&
           is_current(place);
}

static void pause_queue(struct thread_queue *place)
{
    struct stream_queue *queue = &place->queue;
    if (queue->open == NULL)
        return;
    struct in_flight *in_flight = may_be_marked(place) ? in_flight_begin(queue->timebase, queue->stream) : NULL;
    if (in_flight != NULL && is_there(queue))
        queue_close(queue, false);
    else
        queue_pause(queue);
    in_flight_end(in_flight);
}

void thread_pause(struct thread *thread, const struct stream_queue *asleep)
{
    for (unsigned set = 0; set < THREAD_SETS; set++) {
        for (unsigned way = 0; way < THREAD_WAYS; way++) {
            struct thread_queue *place = &thread->queues[set][way];
            if (place->used && place->queue.limiter != NULL && &place->queue != asleep)
                pause_queue(place);
        }
    }
}

static void make_key(void)
{
    atomic_store(&has_key, pthread_key_create(&ending, end) == 0);
}

struct thread *thread_begin(void)
{
    if (thread_self != NULL)
        return thread_self;
    struct thread *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    pthread_once(&keyed, make_key);
    if (atomic_load(&has_key))
        pthread_setspecific(ending, made);
    thread_self = made;
    return made;
}

/* The parent's queues, to which it still belongs, are left as they are: they end in the parent. */
void thread_forget(void)
{
    thread_self = NULL;
}

static struct thread_queue *place_of(struct thread *thread, CUcontext context, CUstream stream)
{
    uint64_t hash = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context << 1) * UINT64_C(0x9E3779B97F4A7C15);
    struct thread_queue *set = thread->queues[(hash >> 32) % THREAD_SETS];
    for (unsigned way = 0; way < THREAD_WAYS; way++) {
        if (set[way].used && set[way].queue.stream == stream && set[way].context == context)
            return &set[way];
    }
    for (unsigned way = 0; way < THREAD_WAYS; way++) {
        if (!set[way].used)
            return &set[way];
    }
    return &set[thread->turn++ % THREAD_WAYS];
}

static unsigned long long id_of(CUstream stream)
{
    unsigned long long id = 0;
    bool told = !thread_is_default(stream) && HAS(cuStreamGetId) && DRIVER(cuStreamGetId, stream, &id) == CUDA_SUCCESS;
    return told ? id : 0;
}

/* What could not be found out is not kept. */
static bool fill(struct thread_queue *place, CUcontext context, CUstream stream)
{
    int cancellation = cancel_off();
    end_queue(place);
    struct belonging belonging = compute_belonging(stream);
    place->context = context;
    place->id = id_of(stream);
    place->used = belonging.known;
    queue_init(&place->queue, belonging.limiter, belonging.timebase, stream);
    cancel_back(cancellation);
    return place->used;
}

/* Since it was last used no stream ended, or this one did not: a handle comes back, on any device. */
static bool is_same_stream(const struct thread_queue *place, uint64_t ended)
{
    return place->queue.streams_ended == ended || thread_is_default(place->queue.stream) ||
           (place->id != 0 && place->id == id_of(place->queue.stream));
}

static bool is_kept(const struct thread_queue *place, CUcontext context, CUstream stream, uint64_t ended)
{
    return place->used && place->queue.stream == stream && place->context == context && !place->queue.lost && is_same_stream(place, ended);
}

/* A default stream is another one in each context. */
static bool find_context(CUstream stream, CUcontext *context)
{
    *context = NULL;
    return !thread_is_default(stream) || DRIVER(cuCtxGetCurrent, context) == CUDA_SUCCESS;
}

struct stream_queue *thread_find_queue(struct thread *thread, CUstream stream)
{
    CUcontext context;
    uint64_t generation = atomic_load_explicit(&compute_generation, memory_order_acquire);
    uint64_t ended = atomic_load_explicit(&compute_streams_ended, memory_order_acquire);
    if (thread->generation != generation)
        end_queues(thread);
    thread->generation = generation;
    if (!find_context(stream, &context))
        return NULL;
    struct thread_queue *place = place_of(thread, context, stream);
    bool kept = is_kept(place, context, stream, ended);
    if (thread->recent == &place->queue)
        thread->recent = NULL;
    if (!kept && !fill(place, context, stream))
        return NULL;
    place->queue.streams_ended = ended;
    if (!thread_is_default(stream))
        thread->recent = &place->queue;
    return place->queue.limiter == NULL ? NULL : &place->queue;
}

/* One that is another stream by now, or cannot be told, is left to its next launch: its batch ends without a mark there. */
void thread_interrupt(struct thread *thread, CUstream stream)
{
    CUcontext context;
    if (thread->generation != atomic_load_explicit(&compute_generation, memory_order_acquire) || !find_context(stream, &context))
        return;
    struct thread_queue *place = place_of(thread, context, stream);
    if (place->queue.open == NULL || !is_kept(place, context, stream, atomic_load_explicit(&compute_streams_ended, memory_order_acquire)))
        return;
    int cancellation = cancel_off();
    queue_interrupt(&place->queue);
    cancel_back(cancellation);
}
