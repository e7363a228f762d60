/*
 * A preloaded library that stops or fails a process at its n-th change to any file system.
 *
 * In: crashpoint_arm(n, mode), crashpoint_pause(on). Out: at the n-th call that makes, removes, renames, fills or syncs a file the process is killed (KILL: before the call;
 * HALF: after half of what would be copied or written), or the call fails for want of space (NOSPACE). crashpoint_count() says how many such calls there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum mode { OFF, KILL, HALF, NOSPACE };

static int at, count, mode, paused;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void crashpoint_arm(int n, int how)
{
    at = n;
    mode = how;
    count = 0;
}

void crashpoint_pause(int on) { paused = on; }

int crashpoint_count(void) { return count; }

/* Before each change: 1 where it is to fail, with errno set; `half` where half of it is to be done. */
static int fails(int *half)
{
    if (mode == OFF || paused || ++count != at)
        return 0;
    if (mode == NOSPACE) {
        errno = ENOSPC;
        return 1;
    }
    if (mode == HALF && half != NULL) {
        *half = 1;
        return 0;
    }
    kill(getpid(), SIGKILL);
    return 0;
}

#define CHANGE(result, name, parameters, arguments) \
    result name parameters { return fails(NULL) ? -1 : REAL(name) arguments; }

CHANGE(int, mkdir, (const char *path, mode_t bits), (path, bits))
CHANGE(int, chmod, (const char *path, mode_t bits), (path, bits))
CHANGE(int, fchmod, (int fd, mode_t bits), (fd, bits))
CHANGE(int, rmdir, (const char *path), (path))
CHANGE(int, unlink, (const char *path), (path))
CHANGE(int, unlinkat, (int directory, const char *path, int flags), (directory, path, flags))
CHANGE(int, link, (const char *from, const char *to), (from, to))
CHANGE(int, linkat, (int one, const char *from, int other, const char *to, int flags), (one, from, other, to, flags))
CHANGE(int, symlink, (const char *target, const char *path), (target, path))
CHANGE(int, rename, (const char *from, const char *to), (from, to))
CHANGE(int, renameat2, (int one, const char *from, int other, const char *to, unsigned int flags), (one, from, other, to, flags))
CHANGE(int, fsync, (int fd), (fd))

#define FILL(name, parameters, whole, part)     \
    ssize_t name parameters                     \
    {                                           \
        int half = 0;                           \
        if (fails(&half))                       \
            return -1;                          \
        ssize_t done = half ? part : whole;     \
        if (half)                               \
            kill(getpid(), SIGKILL);            \
        return done;                            \
    }

FILL(write, (int fd, const void *data, size_t size), REAL(write)(fd, data, size), REAL(write)(fd, data, size / 2))
FILL(sendfile64, (int out, int in, off64_t *from, size_t size), REAL(sendfile64)(out, in, from, size), REAL(sendfile64)(out, in, from, 100))
FILL(copy_file_range, (int in, off64_t *from, int out, off64_t *to, size_t size, unsigned int flags),
     REAL(copy_file_range)(in, from, out, to, size, flags), REAL(copy_file_range)(in, from, out, to, 100, flags))

int open64(const char *path, int flags, ...)
{
    mode_t bits = 0;
    if (flags & O_CREAT) {
        va_list rest;
        va_start(rest, flags);
        bits = va_arg(rest, mode_t);
        va_end(rest);
        if (fails(NULL))
            return -1;
    }
    return REAL(open64)(path, flags, bits);
}
