/* See exported.h. */
#include "exported.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

bool exported_is_locked(int fd, off_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static uint64_t without_maker(int fd)
{
    struct stat found;
    if (!exported_is_locked(fd, EXPORTED_REACHED_BYTE) || exported_is_locked(fd, EXPORTED_MAKER_BYTE) || fstat(fd, &found) != 0)
        return 0;
    return found.st_size > EXPORTED_TRAILER ? (uint64_t)found.st_size - EXPORTED_TRAILER : 0;
}

static uint64_t in_directory(DIR *entries, const char *prefix)
{
    struct dirent *entry;
    uint64_t bytes = 0;
    while ((entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        int fd = openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        bytes += without_maker(fd);
        close(fd);
    }
    return bytes;
}

uint64_t exported_without_maker(const char *state_path, unsigned gpu)
{
    char path[STATE_PATH_SIZE + 16], prefix[16];
    snprintf(path, sizeof path, "%s.memory", state_path);
    snprintf(prefix, sizeof prefix, "vmm-%02u-", gpu);
    DIR *entries = opendir(path);
    uint64_t bytes = entries == NULL ? 0 : in_directory(entries, prefix);
    if (entries != NULL)
        closedir(entries);
    return bytes;
}
