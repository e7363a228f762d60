/* See sharing.h. */
#include "sharing.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../shared/exported.h"
#include "../context.h"
#include "../usage.h"
#include "shared_file.h"

struct sharing {
    struct physical *physical;
    int fd;                     /* -1: opened by name, where the mapping is enough */
    bool named;                 /* under a name that this process made */
    bool exported;              /* in a file of exported memory that this process made */
    struct shared_name name;
    uint64_t file_device, file_inode;
    struct sharing *next;
};

/* Behind the content of an exported file: the process that imports a descriptor knows nothing else. */
struct trailer {
    uint64_t magic, size;
    CUmemAllocationProp properties;
};

#define TRAILER_MAGIC UINT64_C(0x4d454d4145435556)

static pthread_rwlock_t moving = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static struct sharing *all;
static uint64_t self;           /* the maker in names of this process */
static uint64_t files_made;
static bool has_exported;

void sharing_use_begin(void)
{
    pthread_rwlock_rdlock(&moving);
}

void sharing_use_end(void)
{
    pthread_rwlock_unlock(&moving);
}

/* What a child inherits would keep its parent's locks. */
static void close_in_child(void)
{
    for (struct sharing *at = all; at != NULL; at = at->next) {
        if (at->fd >= 0)
            close(at->fd);
    }
    all = NULL;
    has_exported = false;
}

/* A process that ends in an orderly way leaves no name behind for others to remove. */
__attribute__((destructor)) static void remove_names(void)
{
    for (struct sharing *at = all; at != NULL; at = at->next) {
        if (at->named)
            shared_file_remove(at->name.maker, at->name.number);
        else if (at->exported && !file_is_locked(at->fd))
            export_file_remove(at->name.slot, at->name.maker, at->name.number);
    }
    if (has_exported)
        export_files_sweep();       /* what was released before its last descriptor was closed */
}

static void prepare(void)
{
    self = random_word();
    pthread_atfork(NULL, NULL, close_in_child);
}

static bool write_all(int fd, const char *from, uint64_t size, uint64_t at)
{
    while (size > 0) {
        ssize_t written = pwrite(fd, from, size, (off_t)at);
        if (written <= 0)
            return false;
        from += written;
        at += (uint64_t)written;
        size -= (uint64_t)written;
    }
    return true;
}

/* The content moves into the file, and the addresses show the file from then on. */
static bool move_into(struct physical *physical, int fd)
{
    const char *content = physical_content(physical);
    uint64_t from = physical->touched_from, size = physical->touched_to - from;
    pthread_rwlock_wrlock(&moving);
    bool moved = write_all(fd, content + from, size, from) && space_map_file(physical->span.start, physical->span.size, fd);
    pthread_rwlock_unlock(&moving);
    return moved;
}

static struct sharing *attach(struct physical *physical, int fd)
{
    struct sharing *sharing = malloc(sizeof *sharing);
    if (sharing == NULL)
        return NULL;
    *sharing = (struct sharing){.physical = physical, .fd = fd, .next = all};
    if (fd >= 0)
        file_identity(fd, &sharing->file_device, &sharing->file_inode);
    physical->sharing = sharing;
    return all = sharing;
}

static struct sharing *begin(struct physical *physical, int fd)
{
    if (fd < 0)
        return NULL;
    struct sharing *sharing = move_into(physical, fd) ? attach(physical, fd) : NULL;
    if (sharing == NULL)
        close(fd);
    return sharing;
}

/* The ordinal that a GPU of the machine has here; HOST: this process does not see it. */
static int ordinal_of(unsigned slot)
{
    for (int device = 0; device < device_count(); device++) {
        if (device_slot(device) == slot)
            return device;
    }
    return HOST;
}

bool sharing_by_name(struct physical *physical, struct shared_name *name)
{
    pthread_once(&prepared, prepare);
    if (physical->sharing == NULL) {
        struct shared_name fresh = {self, ++files_made, physical->span.size, device_slot(physical->device), 0};
        struct sharing *sharing = begin(physical, shared_file_make(fresh.maker, fresh.number, fresh.size));
        if (sharing == NULL) {
            shared_file_remove(fresh.maker, fresh.number);
            return false;
        }
        sharing->named = true;
        sharing->name = fresh;
    }
    *name = physical->sharing->name;
    return physical->sharing->named;
}

/* A piece of this process that shows the file of another. */
static struct physical *show(int fd, int device, uint64_t size)
{
    struct physical_request request = {.device = device, .size = size, .imported = true};
    struct physical *physical = physical_make(&request);
    if (physical == NULL)
        return NULL;
    if (space_map_file(physical->span.start, physical->span.size, fd) && attach(physical, fd) != NULL)
        return physical;
    physical_unmake(physical);
    return NULL;
}

bool sharing_is_own(const struct shared_name *name)
{
    pthread_once(&prepared, prepare);
    return name->maker == self;
}

struct physical *sharing_open_name(const struct shared_name *name)
{
    int device = ordinal_of(name->slot);
    int fd = device == HOST ? -1 : shared_file_open(name->maker, name->number, name->size);
    struct physical *shown = fd < 0 ? NULL : show(fd, device, name->size);
    if (fd >= 0)
        close(fd);
    if (shown != NULL)
        shown->sharing->fd = -1;
    return shown;
}

static bool on_device(const CUmemAllocationProp *properties)
{
    return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static bool write_trailer(int fd, uint64_t size, const CUmemAllocationProp *properties)
{
    struct trailer trailer = {TRAILER_MAGIC, size, *properties};
    if (on_device(properties))
        trailer.properties.location.id = (int)device_slot(properties->location.id);
    return write_all(fd, (const char *)&trailer, sizeof trailer, size);
}

int sharing_file(struct physical *physical)
{
    pthread_once(&prepared, prepare);
    if (physical->sharing == NULL && begin(physical, anonymous_file_make(physical->span.size + EXPORTED_TRAILER)) == NULL)
        return -1;
    return physical->sharing->fd;
}

/* Where it can be counted when this process is gone. */
static int export_file(struct physical *physical)
{
    pthread_once(&prepared, prepare);
    if (physical->sharing != NULL || physical->device == HOST)
        return sharing_file(physical);
    struct shared_name name = {self, ++files_made, physical->span.size, device_slot(physical->device), 0};
    struct sharing *sharing = begin(physical, export_file_make(name.slot, name.maker, name.number, name.size + EXPORTED_TRAILER));
    if (sharing == NULL)
        return -1;
    usage_note_export(physical->device);
    sharing->exported = has_exported = true;
    sharing->name = name;
    return sharing->fd;
}

int sharing_export(struct physical *physical, const CUmemAllocationProp *properties)
{
    int fd = export_file(physical);
    return fd >= 0 && write_trailer(fd, physical->span.size, properties) ? file_reopen(fd, true) : -1;
}

static struct physical *known(int fd)
{
    uint64_t device, inode;
    if (!file_identity(fd, &device, &inode))
        return NULL;
    for (struct sharing *at = all; at != NULL; at = at->next) {
        if (at->fd >= 0 && at->file_device == device && at->file_inode == inode)
            return at->physical;
    }
    return NULL;
}

static bool read_trailer(int fd, struct trailer *trailer)
{
    off_t end = lseek(fd, 0, SEEK_END);
    return end > EXPORTED_TRAILER && pread(fd, trailer, sizeof *trailer, end - EXPORTED_TRAILER) == (ssize_t)sizeof *trailer &&
           trailer->magic == TRAILER_MAGIC && trailer->size == (uint64_t)end - EXPORTED_TRAILER;
}

static struct physical *import(int fd, int device, uint64_t size)
{
    struct physical *found = known(fd);
    if (found != NULL)
        return found;
    int own = file_reopen(fd, true);
    found = own < 0 ? NULL : show(own, device, size);
    if (found == NULL && own >= 0)
        close(own);
    return found;
}

struct physical *sharing_import(int fd, CUmemAllocationProp *properties)
{
    struct trailer trailer;
    pthread_once(&prepared, prepare);
    if (!read_trailer(fd, &trailer))
        return NULL;
    *properties = trailer.properties;
    if (!on_device(properties))
        return import(fd, HOST, trailer.size);
    properties->location.id = ordinal_of((unsigned)trailer.properties.location.id);
    return properties->location.id == HOST ? NULL : import(fd, properties->location.id, trailer.size);
}

void sharing_end(struct physical *physical)
{
    struct sharing *ended = physical->sharing;
    for (struct sharing **at = &all; *at != NULL; at = &(*at)->next) {
        if (*at == ended) {
            *at = ended->next;
            break;
        }
    }
    space_unmap_file(physical->span.start, physical->span.size);
    if (ended->named)
        shared_file_remove(ended->name.maker, ended->name.number);
    if (ended->exported && !file_is_locked(ended->fd))
        export_file_remove(ended->name.slot, ended->name.maker, ended->name.number);
    if (ended->fd >= 0)
        close(ended->fd);
    free(ended);
    physical->sharing = NULL;
}
