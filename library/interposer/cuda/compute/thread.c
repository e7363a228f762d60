/* See thread.h. */
#include "thread.h"

#include <pthread.h>
#include <stdlib.h>

#include "interposer/cuda/hooks.h"
#include "launch.h"

_Thread_local struct thread *thread_self;

static pthread_key_t ending;
static pthread_once_t keyed = PTHREAD_ONCE_INIT;

static void end_lane(struct thread_lane *lane)
{
    if (lane->used && lane->lane.limiter != NULL)
        lane_end(&lane->lane);
    lane->used = false;
}

static void end_lanes(struct thread *thread)
{
    thread->recent = NULL;
    for (unsigned set = 0; set < THREAD_SETS; set++) {
        for (unsigned way = 0; way < THREAD_WAYS; way++)
            end_lane(&thread->lanes[set][way]);
    }
}

static void end(void *ended)
{
    struct thread *thread = ended;
    if (thread != thread_self)
        return;
    end_lanes(thread);
    thread_self = NULL;
    free(thread);
}

/*
 * A stream that may be gone, or in a capture, is not marked. Neither is one that is behind: its queue may be full, and the mark would wait. Nor is the legacy
 * one, away from a launch into it: a mark there orders all blocking streams of the context, which the program did not ask for and may not survive.
 */
static bool may_be_marked(const struct lane *lane)
{
    return lane->stream != NULL && lane->stream != CU_STREAM_LEGACY && (lane->last == NULL || mark_is_reached(lane->last)) &&
           atomic_load(&compute_captures) == 0 && lane->streams_ended == atomic_load(&compute_streams_ended);
}

static void pause_lane(struct lane *lane)
{
    if (lane->open == NULL)
        return;
    if (may_be_marked(lane))
        lane_close(lane, false);
    else
        lane_pause(lane);
}

void thread_pause(struct thread *thread, const struct lane *asleep)
{
    pthread_mutex_lock(&compute_streams_lock);
    for (unsigned set = 0; set < THREAD_SETS; set++) {
        for (unsigned way = 0; way < THREAD_WAYS; way++) {
            struct thread_lane *lane = &thread->lanes[set][way];
            if (lane->used && lane->lane.limiter != NULL && &lane->lane != asleep)
                pause_lane(&lane->lane);
        }
    }
    pthread_mutex_unlock(&compute_streams_lock);
}

static void make_key(void)
{
    pthread_key_create(&ending, end);
}

struct thread *thread_begin(void)
{
    if (thread_self != NULL)
        return thread_self;
    struct thread *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    pthread_once(&keyed, make_key);
    pthread_setspecific(ending, made);
    thread_self = made;
    return made;
}

/* The parent's lanes, to which it still belongs, are left as they are: they end in the parent. */
void thread_forget(void)
{
    thread_self = NULL;
}

static struct thread_lane *place_of(struct thread *thread, CUcontext context, CUstream stream)
{
    uint64_t hash = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context << 1) * UINT64_C(0x9E3779B97F4A7C15);
    struct thread_lane *set = thread->lanes[(hash >> 32) % THREAD_SETS];
    for (unsigned way = 0; way < THREAD_WAYS; way++) {
        if (set[way].used && set[way].lane.stream == stream && set[way].context == context)
            return &set[way];
    }
    for (unsigned way = 0; way < THREAD_WAYS; way++) {
        if (!set[way].used)
            return &set[way];
    }
    return &set[thread->turn++ % THREAD_WAYS];
}

static void fill(struct thread_lane *place, CUcontext context, CUstream stream)
{
    end_lane(place);
    struct belonging belonging = compute_belonging(stream);
    place->context = context;
    place->used = true;
    lane_init(&place->lane, belonging.limiter, belonging.timebase, stream);
}

struct lane *thread_find_lane(struct thread *thread, CUstream stream)
{
    CUcontext context = NULL;
    uint64_t generation = atomic_load_explicit(&compute_generation, memory_order_acquire);
    if (thread->generation != generation)
        end_lanes(thread);
    thread->generation = generation;
    if (thread_is_default(stream) && DRIVER(cuCtxGetCurrent, &context) != CUDA_SUCCESS)
        return NULL;
    struct thread_lane *place = place_of(thread, context, stream);
    if (!place->used || place->lane.stream != stream || place->context != context || place->lane.lost)
        fill(place, context, stream);
    if (!thread_is_default(stream))
        thread->recent = &place->lane;
    return place->lane.limiter == NULL ? NULL : &place->lane;
}
