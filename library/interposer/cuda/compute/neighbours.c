/* See neighbours.h. */
#include "neighbours.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIST_NS UINT64_C(100000000)
#define JUDGE_NS UINT64_C(100000000)
/* What a neighbour measured counts some tens of milliseconds later (settle.h): no need to read rows at each tick. */
#define READ_NS UINT64_C(5000000)

enum { SLOTS_READ = 128 };     /* of one row: what a container can cost its neighbours is bounded */

static bool is_row(const struct activity_row *row)
{
    return row->magic == ACTIVITY_MAGIC && row->version == ACTIVITY_VERSION && row->size >= sizeof *row;
}

/* A row is never cut by its agent. */
static bool has_room(int file)
{
    struct stat status;
    return fstat(file, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size >= sizeof(struct activity_row);
}

static struct activity_row *map_file(int file)
{
    if (!has_room(file))
        return NULL;
    void *mapped = mmap(NULL, sizeof(struct activity_row), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    if (is_row(mapped))
        return mapped;
    munmap(mapped, sizeof(struct activity_row));
    return NULL;
}

static const char *why_not_open(int error, char reason[static NEIGHBOURS_REASON])
{
    return error == ELOOP ? "is a symbolic link" : strerror_r(error, reason, NEIGHBOURS_REASON);
}

struct activity_row *neighbours_map_own(const char *path, char reason[static NEIGHBOURS_REASON])
{
    char text[NEIGHBOURS_REASON];
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct activity_row *row = file < 0 ? NULL : map_file(file);
    if (row == NULL)
        snprintf(reason, NEIGHBOURS_REASON, "%s", file < 0 ? why_not_open(errno, text) : "is no activity row");
    if (file >= 0)
        close(file);
    return row;
}

static bool read_at(int file, void *into, size_t size, size_t offset)
{
    return pread(file, into, size, (off_t)offset) == (ssize_t)size;
}

/* The ring only where it says something new: an entry more, or the newest one longer. */
static bool read_slot(int file, struct activity_slot *slot, size_t offset)
{
    uint64_t head = atomic_load(&slot->head), busy = atomic_load(&slot->busy_ns);
    if (!read_at(file, slot, offsetof(struct activity_slot, ring), offset))
        return false;
    if (atomic_load(&slot->head) == head && atomic_load(&slot->busy_ns) == busy)
        return true;
    return read_at(file, slot->ring, sizeof slot->ring, offset + offsetof(struct activity_slot, ring));
}

/* Of one that is not believed, not the slots. */
static bool read_row(int file, struct activity_row *row, bool believed)
{
    if (!has_room(file) || !read_at(file, row, offsetof(struct activity_row, slots), 0) || !is_row(row))
        return false;
    if (atomic_load(&row->slot_high) > SLOTS_READ)
        atomic_store(&row->slot_high, SLOTS_READ);
    for (uint32_t i = 0; believed && i < atomic_load(&row->slot_high); i++) {
        if (!read_slot(file, &row->slots[i], offsetof(struct activity_row, slots) + i * sizeof row->slots[i]))
            return false;
    }
    return true;
}

static int open_beside(const struct neighbours *neighbours, const char *prefix, const char *name)
{
    char path[sizeof neighbours->directory + sizeof neighbours->found[0].name + 2];
    snprintf(path, sizeof path, "%s/%s%s", neighbours->directory, prefix, name);
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/*
 * Into the copy. The file is opened each time, because a descriptor that is kept could be closed by the application and be another file by now.
 * A row that cannot be read whole says nothing.
 */
static void refresh(const struct neighbours *neighbours, struct neighbour *neighbour)
{
    int file = open_beside(neighbours, "", neighbour->name);
    neighbour->read = file >= 0 && read_row(file, neighbour->row, !neighbour->claim.spent && !neighbour->claim.assumed);
    if (file >= 0)
        close(file);
    if (!neighbour->read)
        atomic_store(&neighbour->row->slot_high, 0);
}

/* Three words from the agent; one of an older version tells two. */
static bool hear(const struct neighbours *neighbours, const char *name, uint32_t told[static 3])
{
    int file = open_beside(neighbours, ".", name);
    bool heard = file >= 0 && pread(file, told, 3 * sizeof told[0], 0) >= (ssize_t)(2 * sizeof told[0]);
    if (file >= 0)
        close(file);
    return heard;
}

static void hear_of(const struct neighbours *neighbours, struct neighbour *neighbour)
{
    uint32_t told[3] = {0};
    neighbour->told = hear(neighbours, neighbour->name, told);
    if (neighbour->told)
        neighbour->share = (struct share){told[0], told[1], 0};
    neighbour->assumed_cores = neighbour->told ? told[2] : 0;
}

static bool is_hidden(const struct neighbours *neighbours, const struct activity_row *own)
{
    uint32_t told[3] = {0};
    return (own != NULL && !is_row(own)) || (hear(neighbours, neighbours->grant, told) && told[2] != 0);
}

static void let_go(struct neighbours *neighbours, unsigned place)
{
    munmap(neighbours->found[place].row, sizeof(struct activity_row));
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
    struct neighbour *old = known(neighbours, entry);
    if (old != NULL) {
        old->listed = true;
        return;
    }
    if (neighbours->count == PRESENCE_ROWS || strlen(entry->d_name) >= sizeof old->name)
        return;
    void *copy = mmap(NULL, sizeof(struct activity_row), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED)
        return;
    struct neighbour *added = &neighbours->found[neighbours->count++];
    *added = (struct neighbour){.inode = entry->d_ino, .row = copy, .listed = true};
    memcpy(added->name, entry->d_name, strlen(entry->d_name) + 1);
    refresh(neighbours, added);
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
    for (unsigned i = 0; i < neighbours->count; i++)
        hear_of(neighbours, &neighbours->found[i]);
    neighbours->judged_ns = 0;
}

static void read_all(struct neighbours *neighbours)
{
    for (unsigned i = 0; i < neighbours->count; i++)
        refresh(neighbours, &neighbours->found[i]);
}

void neighbours_look(struct neighbours *neighbours, uint64_t now, struct presence *presence)
{
    bool there = neighbours->directory[0] != '\0';
    if (there && (neighbours->listed_ns == 0 || now >= neighbours->listed_ns + LIST_NS)) {
        neighbours->listed_ns = now;
        list(neighbours);
        neighbours->hidden = is_hidden(neighbours, presence->row);
    }
    if (there && now >= neighbours->read_ns + READ_NS) {
        neighbours->read_ns = now;
        read_all(neighbours);
    }
    neighbours->ahead_ns = atomic_load_explicit(&presence->ahead_ns, memory_order_relaxed);
    presence->other_count = neighbours->count;
    for (unsigned i = 0; i < neighbours->count; i++)
        presence->others[i] = (struct presence_other){neighbours->found[i].row, &neighbours->found[i].claim};
}

/* ---- what is believed of them ---- */

static uint32_t at_most(uint32_t value, uint32_t most)
{
    return value < most ? value : most;
}

/* A want in the future does not count: it would hold back what others may borrow until then. Who is assumed to use the GPU wants it. */
static void see_share(const struct neighbours *neighbours, struct neighbour *neighbour, struct share own, uint64_t now)
{
    uint32_t whole = LIMITS_NO_CORES, room = own.cores < whole ? whole - own.cores : 0;
    uint64_t wanted = atomic_load_explicit(&neighbour->row->wanted_ns, memory_order_relaxed);
    struct share *share = &neighbour->share;
    wanted = wanted == 0 ? 0 : wanted + (uint64_t)neighbours->ahead_ns;
    if (!neighbour->told) {
        share->cores = at_most(atomic_load_explicit(&neighbour->row->cores, memory_order_relaxed), room);
        share->soft_cores = atomic_load_explicit(&neighbour->row->soft_cores, memory_order_relaxed);
    }
    share->cores = at_most(share->cores, whole);
    share->soft_cores = at_most(share->soft_cores, whole);
    bool assumed = neighbour->told && (!neighbour->read || neighbour->assumed_cores != 0);
    neighbour->claim.assumed = assumed && !neighbours->hidden;
    share->wanted_ns = assumed ? now : wanted > now ? 0 : wanted;
}

/*
 * What the agent saw is what it takes, be it more than its limit, past the library, or less, because who hides pays for all turns: were it taken for its
 * limit, the neighbour that has most to launch would have the rest, and the others less than theirs.
 */
static uint32_t rate_of(const struct neighbour *neighbour, const struct share *others, unsigned count, uint64_t now)
{
    uint32_t assumed = at_most(neighbour->assumed_cores, LIMITS_NO_CORES) * 1000;
    return assumed != 0 ? assumed : borrow_rate(neighbour->share, others, count, now);
}

/* Each may have what it would reckon itself. */
static void see_rates(struct neighbours *neighbours, struct share own, uint64_t now)
{
    struct share shares[PRESENCE_ROWS];
    for (unsigned i = 0; i < neighbours->count; i++)
        shares[i] = neighbours->found[i].share;
    for (unsigned i = 0; i < neighbours->count; i++) {
        shares[i] = own;
        neighbours->found[i].claim.rate = rate_of(&neighbours->found[i], shares, neighbours->count, now);
        shares[i] = neighbours->found[i].share;
    }
}

void neighbours_judge(struct neighbours *neighbours, struct share own, uint64_t now)
{
    for (unsigned i = 0; i < neighbours->count; i++)
        see_share(neighbours, &neighbours->found[i], own, now);
    if (neighbours->judged_ns == 0 || now >= neighbours->judged_ns + JUDGE_NS) {
        neighbours->judged_ns = now;
        see_rates(neighbours, own, now);
    }
    for (unsigned i = 0; i < neighbours->count; i++)
        claim_fill(&neighbours->found[i].claim, now);
}
