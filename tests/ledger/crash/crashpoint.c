/*
 * A preloaded library that stops or fails a process at its n-th change to files of one directory.
 *
 * In: crashpoint_arm(directory, n, mode). Out: at the n-th write, sync, truncation, rename or unlink below that
 * directory the process is killed (KILL: before the call; HALF: after half of a write; POWER: before the call, and
 * whatever was not synced is taken back, as a machine without power would) or the call fails (NOSPACE, IOERROR; a write
 * does half of its work first). crashpoint_count() says how many such calls were made.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum mode { OFF, KILL, HALF, POWER, NOSPACE, IOERROR };

#define FDS 64
static char directory[PATH_MAX];
static int at, count, mode;
static off_t synced[FDS]; /* size that would survive a power loss; -1: not seen yet */
static char renamed_to[PATH_MAX], kept[PATH_MAX + 8];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void crashpoint_arm(const char *dir, int n, int how)
{
    snprintf(directory, sizeof directory, "%s", dir);
    at = n;
    mode = how;
    count = 0;
    renamed_to[0] = 0;
    for (int fd = 0; fd < FDS; fd++)
        synced[fd] = -1;
}

int crashpoint_count(void) { return count; }

static int is_below(const char *path) { return mode != OFF && strncmp(path, directory, strlen(directory)) == 0; }

static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

static int is_ours(int fd)
{
    char path[PATH_MAX];
    return fd >= 0 && fd < FDS && path_of(fd, path) && is_below(path);
}

static off_t size_of(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_size : 0;
}

static void lose_power(void)
{
    for (int fd = 0; fd < FDS; fd++)
        if (synced[fd] >= 0 && is_ours(fd))
            (void)!REAL(ftruncate64)(fd, synced[fd]);
    if (renamed_to[0]) {
        if (kept[0])
            (void)!REAL(rename)(kept, renamed_to);
        else
            (void)!REAL(unlink)(renamed_to);
    }
}

/* The point before each change: 0 go on, -1 fail with errno set. */
static int point(int *half)
{
    if (++count != at)
        return 0;
    *half = mode == HALF || mode == NOSPACE || mode == IOERROR;
    if (mode == NOSPACE || mode == IOERROR) {
        errno = mode == NOSPACE ? ENOSPC : EIO;
        return -1;
    }
    if (mode == POWER)
        lose_power();
    if (mode != HALF)
        kill(getpid(), SIGKILL);
    return 0;
}

ssize_t write(int fd, const void *data, size_t size)
{
    int half = 0;
    if (!is_ours(fd))
        return REAL(write)(fd, data, size);
    if (synced[fd] < 0)
        synced[fd] = size_of(fd);
    int failed = point(&half);
    int cause = errno;
    ssize_t done = REAL(write)(fd, data, half ? size / 2 : size);
    if (half && mode == HALF)
        kill(getpid(), SIGKILL);
    errno = cause;
    return failed ? -1 : done;
}

static int sync_with(int (*real)(int), int fd)
{
    int half = 0;
    char path[PATH_MAX];
    if (!is_ours(fd))
        return real(fd);
    if (point(&half) < 0)
        return -1;
    if (half)
        kill(getpid(), SIGKILL);
    synced[fd] = size_of(fd);
    if (path_of(fd, path) && renamed_to[0] && strncmp(renamed_to, path, strlen(path)) == 0) {
        struct stat status;
        if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
            renamed_to[0] = 0;
            if (kept[0])
                REAL(unlink)(kept);
        }
    }
    return real(fd);
}

int fsync(int fd) { return sync_with(REAL(fsync), fd); }
int fdatasync(int fd) { return sync_with(REAL(fdatasync), fd); }

static int truncate_with(int fd, off_t size)
{
    int half = 0;
    if (is_ours(fd) && point(&half) < 0)
        return -1;
    if (half)
        kill(getpid(), SIGKILL);
    if (fd >= 0 && fd < FDS && synced[fd] > size)
        synced[fd] = size;
    return REAL(ftruncate64)(fd, size);
}

int ftruncate(int fd, off_t size) { return truncate_with(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncate_with(fd, size); }

int close(int fd)
{
    if (fd >= 0 && fd < FDS)
        synced[fd] = -1;
    return REAL(close)(fd);
}

int rename(const char *from, const char *to)
{
    int half = 0;
    if (!is_below(to))
        return REAL(rename)(from, to);
    if (point(&half) < 0)
        return -1;
    if (half)
        kill(getpid(), SIGKILL);
    snprintf(renamed_to, sizeof renamed_to, "%s", to);
    snprintf(kept, sizeof kept, "%s.kept", to);
    if (link(to, kept) != 0)
        kept[0] = 0;
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    int half = 0;
    if (is_below(path) && access(path, F_OK) == 0) {
        if (point(&half) < 0)
            return -1;
        if (half)
            kill(getpid(), SIGKILL);
    }
    return REAL(unlink)(path);
}

__attribute__((constructor)) static void begin(void)
{
    for (int fd = 0; fd < FDS; fd++)
        synced[fd] = -1;
}
