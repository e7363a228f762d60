/* See lock.h. Invariant: while a thread forks, no thread of this process holds the file's lock, so a child never inherits it. */
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static int lock_fd = -1;

static void before_fork(void)
{
    pthread_mutex_lock(&threads);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&threads);
}

static void after_fork_in_child(void)
{
    if (lock_fd >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", lock_fd);
        int fresh = open(path, O_RDWR | O_CLOEXEC);
        close(lock_fd);
        lock_fd = fresh;
    }
    pthread_mutex_unlock(&threads);
}

static void prepare(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static bool set_lock(short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int done;
    do
        done = fcntl(lock_fd, F_OFD_SETLKW, &lock);
    while (done != 0 && errno == EINTR);
    return done == 0;
}

/* A library that is unloaded must not leave its descriptor behind. */
__attribute__((destructor)) static void close_lock(void)
{
    if (lock_fd >= 0)
        close(lock_fd);
    lock_fd = -1;
}

void lock_adopt(int fd)
{
    pthread_once(&prepared, prepare);
    pthread_mutex_lock(&threads);
    if (lock_fd >= 0)
        close(lock_fd);
    lock_fd = fd;
    pthread_mutex_unlock(&threads);
}

bool lock_take(void)
{
    pthread_mutex_lock(&threads);
    if (lock_fd >= 0 && set_lock(F_WRLCK))
        return true;
    pthread_mutex_unlock(&threads);
    return false;
}

void lock_drop(void)
{
    set_lock(F_UNLCK);
    pthread_mutex_unlock(&threads);
}
