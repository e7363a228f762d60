/*
 * The one way this library speaks: a line on stderr, at most once a minute for each topic, in one write so that lines do not mix.
 * Takes no lock; errno is kept; no thread is cancelled in it. A stderr that nobody reads neither holds the program up nor ends it.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { LINE = 512 };
static const uint64_t quiet_ns = UINT64_C(60000000000);
static _Atomic uint64_t spoken[TOPIC_COUNT];    /* when a topic was last spoken of; 0: never */

uint64_t vcuda_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static bool may_speak(enum vcuda_topic topic)
{
    uint64_t now = vcuda_now_ns(), last = atomic_load(&spoken[topic]);
    return (last == 0 || now - last >= quiet_ns) && atomic_compare_exchange_strong(&spoken[topic], &last, now);
}

/* A pipe without a reader sends SIGPIPE, which would end the program: it is taken away again, unless one was waiting already. */
static void write_quietly(const char *line, size_t length)
{
    struct pollfd errors = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct timespec at_once = {0};
    sigset_t pipe, before, waiting;
    if (poll(&errors, 1, 0) != 1)
        return;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    sigpending(&waiting);
    if (write(STDERR_FILENO, line, length) < 0 && errno == EPIPE && !sigismember(&waiting, SIGPIPE))
        sigtimedwait(&pipe, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void vcuda_warn(enum vcuda_topic topic, const char *format, ...)
{
    int kept = errno, cancel_state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    if (may_speak(topic)) {
        char line[LINE] = "vcuda: ";
        size_t length = strlen(line);
        va_list arguments;
        va_start(arguments, format);
        int more = vsnprintf(line + length, sizeof line - length - 1, format, arguments);
        va_end(arguments);
        length = more < 0 ? length : length + (size_t)more;
        if (length > sizeof line - 2)
            length = sizeof line - 2;
        line[length] = '\n';
        write_quietly(line, length + 1);
    }
    pthread_setcancelstate(cancel_state, NULL);
    errno = kept;
}
