/* See neighbours.h. */
#include "neighbours.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIST_NS UINT64_C(100000000)

static bool is_row(const struct activity_row *row)
{
    return row->magic == ACTIVITY_MAGIC && row->version == ACTIVITY_VERSION && row->size >= sizeof *row;
}

static struct activity_row *map_file(int file, bool writable)
{
    struct stat status;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || (uint64_t)status.st_size < sizeof(struct activity_row))
        return NULL;
    void *mapped = mmap(NULL, sizeof(struct activity_row), writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    if (is_row(mapped))
        return mapped;
    munmap(mapped, sizeof(struct activity_row));
    return NULL;
}

struct activity_row *neighbours_map(const char *path, bool writable)
{
    int file = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return NULL;
    struct activity_row *row = map_file(file, writable);
    close(file);
    return row;
}

static void let_go(struct neighbours *neighbours, unsigned place)
{
    munmap((void *)(uintptr_t)neighbours->found[place].row, sizeof(struct activity_row));
    neighbours->found[place] = neighbours->found[--neighbours->count];
}

static struct neighbour *known(struct neighbours *neighbours, const struct dirent *entry)
{
    for (unsigned i = 0; i < neighbours->count; i++) {
        if (neighbours->found[i].inode == entry->d_ino && strcmp(neighbours->found[i].name, entry->d_name) == 0)
            return &neighbours->found[i];
    }
    return NULL;
}

static void see(struct neighbours *neighbours, const struct dirent *entry)
{
    char path[sizeof neighbours->directory + sizeof entry->d_name];
    struct neighbour *old = known(neighbours, entry);
    if (old != NULL) {
        old->listed = true;
        return;
    }
    if (neighbours->count == PRESENCE_ROWS || strlen(entry->d_name) >= sizeof old->name)
        return;
    snprintf(path, sizeof path, "%s/%s", neighbours->directory, entry->d_name);
    const struct activity_row *row = neighbours_map(path, false);
    if (row == NULL)
        return;
    struct neighbour *added = &neighbours->found[neighbours->count++];
    *added = (struct neighbour){.inode = entry->d_ino, .row = row, .listed = true};
    memcpy(added->name, entry->d_name, strlen(entry->d_name) + 1);
}

static void list(struct neighbours *neighbours)
{
    DIR *directory = opendir(neighbours->directory);
    struct dirent *entry;
    for (unsigned i = 0; i < neighbours->count; i++)
        neighbours->found[i].listed = false;
    neighbours->readable = directory != NULL;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, neighbours->grant) != 0)
            see(neighbours, entry);
    }
    if (directory != NULL)
        closedir(directory);
    for (unsigned i = neighbours->count; i-- > 0;) {
        if (!neighbours->found[i].listed)
            let_go(neighbours, i);
    }
}

void neighbours_look(struct neighbours *neighbours, uint64_t now, struct presence *presence)
{
    if (neighbours->directory[0] != '\0' && (neighbours->listed_ns == 0 || now >= neighbours->listed_ns + LIST_NS)) {
        neighbours->listed_ns = now;
        list(neighbours);
    }
    presence->other_count = neighbours->count;
    for (unsigned i = 0; i < neighbours->count; i++)
        presence->others[i] = neighbours->found[i].row;
}
