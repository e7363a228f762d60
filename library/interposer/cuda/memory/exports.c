/* See exports.h. One caller at a time. */
#include "exports.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/*
 * Far behind what anybody else locks; then a number of the program, then a count. Where containers have one device node, and for a program after exec,
 * pids are not different.
 */
#define FIRST_BYTE (UINT64_C(1) << 60)
enum { COUNT_BITS = 28, PATH = 472, AT_ONCE = 8 };

#define AGAIN_NS UINT64_C(100000000)

struct export {
    uint64_t byte;
    uint64_t device, inode;
    char path[PATH];            /* "": not to be looked at */
    bool is_descriptor;         /* one was given out */
    bool is_endless;
    bool is_fabric;             /* something is behind the handle, as far as is known */
    unsigned char fabric[EXPORTS_FABRIC];
    uint64_t asked_ns;
    struct export *next;        /* free ones */
};

static struct export *unused;
static uint64_t program, last;

static uint64_t new_byte(void)
{
    struct timespec now;

    if (program == 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t instant = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
        program = ((instant + ((uint64_t)getpid() << 40)) * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    }
    return FIRST_BYTE | program << COUNT_BITS | (++last & ((1 << COUNT_BITS) - 1));
}

static bool add_records(void)
{
    struct export *more = mmap(NULL, AT_ONCE * sizeof *more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (more == MAP_FAILED)
        return false;
    for (int i = 0; i < AT_ONCE; i++) {
        more[i].next = unused;
        unused = &more[i];
    }
    return true;
}

static struct export *new_export(void)
{
    if (unused == NULL && !add_records())
        return NULL;
    struct export *made = unused;
    unused = made->next;
    *made = (struct export){.byte = new_byte()};
    return made;
}

static int lock(int file, int command, short type, uint64_t byte, short *found)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};
    int error = fcntl(file, command, &lock);

    *found = lock.l_type;
    return error;
}

static bool is_file(int file, const struct export *export)
{
    struct stat found;

    return fstat(file, &found) == 0 && found.st_dev == export->device && found.st_ino == export->inode;
}

/* By a path that leads to the same file, if there is one. */
static void find_path(struct export *export, int descriptor)
{
    struct stat found;
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, export->path, sizeof export->path);
    if (length <= 0 || length == sizeof export->path || fstat(descriptor, &found) != 0) {
        export->path[0] = '\0';
        return;
    }
    export->path[length] = '\0';
    export->device = found.st_dev;
    export->inode = found.st_ino;
    int file = open(export->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0 || !is_file(file, export))
        export->path[0] = '\0';
    if (file >= 0)
        close(file);
}

struct export *exports_mark(struct export *known, int descriptor, uint32_t owner)
{
    struct export *export = known != NULL ? known : new_export();
    short ignored;

    fcntl(descriptor, F_SETOWN, (int)owner);
    if (export == NULL)
        return NULL;
    if (!export->is_descriptor)
        find_path(export, descriptor);
    export->is_descriptor = true;
    if (export->path[0] != '\0' && (!is_file(descriptor, export) || lock(descriptor, F_OFD_SETLK, F_RDLCK, export->byte, &ignored) != 0))
        export->path[0] = '\0';
    return export;
}

struct export *exports_mark_endless(struct export *known)
{
    struct export *export = known != NULL ? known : new_export();

    if (export != NULL)
        export->is_endless = true;
    return export;
}

struct export *exports_mark_fabric(struct export *known, const void *handle)
{
    struct export *export = known != NULL ? known : new_export();

    if (export == NULL)
        return NULL;
    if (export->is_fabric && memcmp(export->fabric, handle, EXPORTS_FABRIC) != 0)
        export->is_endless = true;      /* two names of one piece: nobody does so */
    export->is_fabric = true;
    memcpy(export->fabric, handle, EXPORTS_FABRIC);
    return export;
}

bool exports_ask_fabric(struct export *export, unsigned char handle[static EXPORTS_FABRIC], uint64_t now_ns)
{
    if (!export->is_fabric || export->is_endless || (export->asked_ns != 0 && now_ns - export->asked_ns < AGAIN_NS))
        return false;
    export->asked_ns = now_ns;
    memcpy(handle, export->fabric, EXPORTS_FABRIC);
    return true;
}

void exports_fabric_ended(struct export *export)
{
    export->is_fabric = false;
}

/* Another open file of the same, for a lock is no hindrance to the file that holds it. */
bool exports_is_open(const struct export *export)
{
    short found = F_RDLCK;

    if (export->is_endless || export->is_fabric || (export->is_descriptor && export->path[0] == '\0'))
        return true;
    if (!export->is_descriptor)
        return false;
    int file = open(export->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0)
        return errno != ENOENT;     /* removed: nobody had it any more */
    bool same = is_file(file, export), told = lock(file, F_OFD_GETLK, F_WRLCK, export->byte, &found) == 0;
    close(file);
    return same && (!told || found != F_UNLCK);
}

void exports_drop(struct export *export)
{
    if (export == NULL)
        return;
    export->next = unused;
    unused = export;
}

uint32_t exports_owner(int descriptor)
{
    int owner = fcntl(descriptor, F_GETOWN);

    return owner > 0 ? (uint32_t)owner : 0;
}

void exports_forget(void)
{
    unused = NULL;
    program = 0;
}
