/*
 * See shared_file.h. The directory is the state's name and ".memory"; like the state, all processes that reach it may use it. It is locked
 * while a file in it has no lock of its maker's yet, and while files without one are removed.
 */
#include "shared_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../shared/exported.h"
#include "../../shared/state.h"
#include "../context.h"

enum { NAME_SIZE = 48 };

static int open_directory(bool make)
{
    char path[STATE_PATH_SIZE + 16];
    snprintf(path, sizeof path, "%s.memory", state_path());
    if (make && mkdir(path, 0777) == 0)
        chmod(path, 0777); /* past the umask */
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void name_of(char *name, uint64_t maker, uint64_t number)
{
    snprintf(name, NAME_SIZE, "%016llx-%016llx", (unsigned long long)maker, (unsigned long long)number);
}

static bool lock_byte(int fd, off_t byte)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

bool file_lock(int fd)
{
    return lock_byte(fd, EXPORTED_REACHED_BYTE);
}

bool file_is_locked(int fd)
{
    return exported_is_locked(fd, EXPORTED_REACHED_BYTE);
}

int file_reopen(int fd, bool lock)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int fresh = open(path, O_RDWR | O_CLOEXEC);
    if (fresh >= 0 && lock && !file_lock(fresh)) {
        close(fresh);
        return -1;
    }
    return fresh;
}

static void close_directory(int directory)
{
    flock(directory, LOCK_UN); /* a child that was forked meanwhile has the description too */
    close(directory);
}

/* A file that is not locked belongs to a process that is gone. */
static void sweep(int directory)
{
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        int fd = entry->d_name[0] == '.' ? -1 : openat(directory, entry->d_name, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && !exported_is_locked(fd, EXPORTED_REACHED_BYTE) && !exported_is_locked(fd, EXPORTED_MAKER_BYTE))
            unlinkat(directory, entry->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (entries != NULL)
        closedir(entries);
    else if (copy >= 0)
        close(copy);
}

static int open_swept(bool make)
{
    int directory = open_directory(make);
    while (directory >= 0 && flock(directory, LOCK_EX) != 0 && errno == EINTR)
        continue;
    if (directory >= 0)
        sweep(directory);
    return directory;
}

static int make(const char *name, uint64_t size, off_t byte)
{
    int directory = open_swept(true);
    if (directory < 0)
        return -1;
    int fd = openat(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    bool made = fd >= 0 && fchmod(fd, 0666) == 0 && ftruncate(fd, (off_t)size) == 0 && lock_byte(fd, byte);
    if (!made && fd >= 0) {
        unlinkat(directory, name, 0);
        close(fd);
    }
    close_directory(directory);
    return made ? fd : -1;
}

int shared_file_make(uint64_t maker, uint64_t number, uint64_t size)
{
    char name[NAME_SIZE];
    name_of(name, maker, number);
    return make(name, size, EXPORTED_REACHED_BYTE);
}

static void export_name(char *name, unsigned gpu, uint64_t maker, uint64_t number)
{
    snprintf(name, NAME_SIZE, "vmm-%02u-%016llx-%llx", gpu, (unsigned long long)maker, (unsigned long long)number);
}

int export_file_make(unsigned gpu, uint64_t maker, uint64_t number, uint64_t size)
{
    char name[NAME_SIZE];
    export_name(name, gpu, maker, number);
    return make(name, size, EXPORTED_MAKER_BYTE);
}

void export_files_sweep(void)
{
    int directory = open_swept(false);
    if (directory >= 0)
        close_directory(directory);
}

int shared_file_open(uint64_t maker, uint64_t number, uint64_t size)
{
    char name[NAME_SIZE];
    struct stat found;
    int directory = open_swept(false);
    if (directory < 0)
        return -1;
    name_of(name, maker, number);
    int fd = openat(directory, name, O_RDWR | O_CLOEXEC);
    close_directory(directory);
    if (fd >= 0 && (fstat(fd, &found) != 0 || (uint64_t)found.st_size != size)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void remove_file(const char *name)
{
    int directory = open_directory(false);
    if (directory < 0)
        return;
    unlinkat(directory, name, 0);
    close(directory);
}

void shared_file_remove(uint64_t maker, uint64_t number)
{
    char name[NAME_SIZE];
    name_of(name, maker, number);
    remove_file(name);
}

void export_file_remove(unsigned gpu, uint64_t maker, uint64_t number)
{
    char name[NAME_SIZE];
    export_name(name, gpu, maker, number);
    remove_file(name);
}

int anonymous_file_make(uint64_t size)
{
    int fd = memfd_create("vcuda-emulator-memory", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool file_identity(int fd, uint64_t *device, uint64_t *inode)
{
    struct stat found;
    if (fstat(fd, &found) != 0)
        return false;
    *device = found.st_dev;
    *inode = found.st_ino;
    return true;
}

uint64_t random_word(void)
{
    uint64_t word = 0;
    while (getrandom(&word, sizeof word, 0) < 0 && errno == EINTR)
        continue;
    return word;
}
