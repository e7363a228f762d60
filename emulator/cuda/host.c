/*
 * The host thread: calls the functions that cuLaunchHostFunc queued, and lets go of what waits for them. One for the process, from the first time that
 * something waits in a queue until the process ends. Invariant: no lock is held while an application's function runs.
 */
#include "host.h"

#include <pthread.h>
#include <signal.h>

#include "lock.h"
#include "queue.h"
#include "session.h"

#define LONGEST_NS UINT64_C(1000000000)

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

/* True: something moved, and the lists may be others now. */
static bool progress(struct stream *stream, uint64_t *wake)
{
    bool moved = queue_progress(stream, wake);
    if (stream->first != NULL && stream->first->kind == ITEM_HOST && gpu_passed(stream->gpu, stream_earliest(stream))) {
        call(stream);
        moved = true;
    }
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
