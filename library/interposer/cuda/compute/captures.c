/* See captures.h. One that cannot be kept for want of memory is counted for good. */
#include "captures.h"

#include <pthread.h>
#include <stdlib.h>

#include "process.h"

struct capture {
    struct capture *next;
    CUstream stream;
    pthread_t thread;                   /* of CU_STREAM_PER_THREAD */
    CUcontext context;
    CUdevice device;
};

_Atomic uint32_t compute_captures;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;

static bool is_of(const struct capture *capture, CUstream stream)
{
    return capture->stream == stream && (stream != CU_STREAM_PER_THREAD || pthread_equal(capture->thread, pthread_self()));
}

/* Under the lock. */
static void drop(struct capture **link)
{
    struct capture *dropped = *link;
    *link = dropped->next;
    free(dropped);
    atomic_fetch_sub(&compute_captures, 1);
}

static void drop_stream(CUstream stream)
{
    for (struct capture **link = &captures; *link != NULL;) {
        if (is_of(*link, stream))
            drop(link);
        else
            link = &(*link)->next;
    }
}

void captures_begin(void)
{
    atomic_fetch_add(&compute_captures, 1);
}

void captures_begun(CUstream stream, bool success)
{
    struct place place = {NULL, CU_DEVICE_INVALID};
    struct capture *made = success ? calloc(1, sizeof *made) : NULL;
    if (!success)
        atomic_fetch_sub(&compute_captures, 1);
    if (made == NULL)
        return;
    contexts_place(stream, &place);
    *made = (struct capture){NULL, stream, pthread_self(), place.context, place.device};
    pthread_mutex_lock(&lock);
    drop_stream(stream);                /* one that ended in a way we do not see */
    made->next = captures;
    captures = made;
    pthread_mutex_unlock(&lock);
}

void captures_end(CUstream stream)
{
    pthread_mutex_lock(&lock);
    drop_stream(stream);
    pthread_mutex_unlock(&lock);
}

void captures_end_in(CUdevice device, CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (struct capture **link = &captures; *link != NULL;) {
        if (context != NULL ? (*link)->context == context : (*link)->device == device)
            drop(link);
        else
            link = &(*link)->next;
    }
    pthread_mutex_unlock(&lock);
}

/* What the parent had is left as it is. */
void captures_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    captures = NULL;
    atomic_store(&compute_captures, 0);
}
