/*
 * The host thread: calls the functions that cuLaunchHostFunc queued, performs operations of memory, and lets go of what waits for them. One for the
 * process, from the first time that something waits in a queue until the process ends. Invariant: no lock is held while an application's function runs.
 */
#include "host.h"

#include <pthread.h>
#include <signal.h>

#include "lock.h"
#include "queue.h"
#include "session.h"

#define LONGEST_NS UINT64_C(1000000000)
/* How often a word that a stream waits for is read. */
#define LOOK_NS UINT64_C(50000)

static bool started;            /* guarded by driver_lock() */
__thread bool host_calling;

static void call(struct stream *stream)
{
    CUhostFn function = stream->first->function;
    void *data = stream->first->data;
    stream->running = true;
    driver_unlock();
    host_calling = true;
    function(data);
    host_calling = false;
    driver_lock();
    stream->running = false;
    queue_pop(stream);
}

static void operate(struct stream *stream)
{
    stream->running = true;
    driver_unlock();
    bool over = operation_perform(&stream->first->operation);
    driver_lock();
    stream->running = false;
    stream->first->look_at = clock_ns() + LOOK_NS;
    if (over)
        queue_pop(stream);
}

/* What only this thread can do; true: done, and the lock was let go of. */
static bool progress_host(struct stream *stream, uint64_t *wake)
{
    const struct item *first = stream->first;
    bool host = first != NULL && (first->kind == ITEM_HOST || first->kind == ITEM_OPERATION);
    if (!host || !gpu_passed(stream->gpu, stream_earliest(stream)))
        return false;
    if (first->kind == ITEM_HOST) {
        call(stream);
        return true;
    }
    if (first->look_at > clock_ns()) {
        *wake = first->look_at < *wake ? first->look_at : *wake;
        return false;
    }
    operate(stream);
    return true;
}

/* True: something moved, and the lists may be others now. */
static bool progress(struct stream *stream, uint64_t *wake)
{
    bool moved = queue_progress(stream, wake);
    moved |= progress_host(stream, wake);
    if (stream->first == NULL && stream->ended)
        stream_end(stream);
    return moved;
}

static bool progress_any(uint64_t *wake)
{
    for (struct context *context = contexts; context != NULL; context = context->next) {
        for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
            if (stream->first != NULL && progress(stream, wake))
                return true;
        }
    }
    return false;
}

static void *run(void *unused)
{
    driver_lock();
    for (;;) {
        uint64_t wake = clock_ns() + LONGEST_NS;
        if (progress_any(&wake))
            driver_changed();
        else
            driver_wait(wake);
    }
    return unused;
}

void host_wake(void)
{
    sigset_t all, before;
    pthread_t thread;
    if (started) {
        driver_changed();
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, NULL, run, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
}
