/*
 * Backing; see backing.h. Both tables are arrays sorted by their key: handles by number, mappings by address, so that one call may unmap
 * a range of many. Programs with many mappings append at ascending addresses, which costs a sorted array nothing.
 */
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backing_state.h"

struct held {
    uint64_t key;           /* handle; address */
    uint64_t extent;        /* how often a handle must be released; bytes of a mapping */
    struct memory *memory;  /* never NULL */
};

struct sorted {
    struct held *items;
    size_t count, capacity;
};

enum { FIRST_CAPACITY = 170, MEMORIES_AT_ONCE = 100 };

static struct sorted handles, mappings;
static struct memory *free_memories;

static void *pages(size_t bytes)
{
    void *got = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return got == MAP_FAILED ? NULL : got;
}

/* The position of the first item that is not below the key. */
static size_t find(const struct sorted *table, uint64_t key)
{
    size_t low = 0, high = table->count;

    if (high != 0 && table->items[high - 1].key < key)
        return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (table->items[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct held *lookup(const struct sorted *table, uint64_t key)
{
    size_t at = find(table, key);

    return at < table->count && table->items[at].key == key ? &table->items[at] : NULL;
}

static struct held *mapping_at(uint64_t address)
{
    size_t at = find(&mappings, address + 1);

    return at != 0 && address - mappings.items[at - 1].key < mappings.items[at - 1].extent ? &mappings.items[at - 1] : NULL;
}

static bool make_room(struct sorted *table)
{
    size_t capacity = table->capacity ? 2 * table->capacity : FIRST_CAPACITY;
    struct held *bigger;

    if (table->count < table->capacity)
        return true;
    bigger = pages(capacity * sizeof(*bigger));
    if (bigger == NULL)
        return false;
    if (table->count != 0) {
        memcpy(bigger, table->items, table->count * sizeof(*bigger));
        munmap(table->items, table->capacity * sizeof(*bigger));
    }
    table->items = bigger;
    table->capacity = capacity;
    return true;
}

static void insert(struct sorted *table, struct held item)
{
    size_t at = find(table, item.key);

    memmove(table->items + at + 1, table->items + at, (table->count - at) * sizeof(item));
    table->items[at] = item;
    table->count++;
}

static void cut(struct sorted *table, size_t from, size_t to)
{
    if (from == to)
        return;
    memmove(table->items + from, table->items + to, (table->count - to) * sizeof(*table->items));
    table->count -= to - from;
}

static struct memory *new_memory(unsigned device, uint64_t bytes)
{
    struct memory *memory = free_memories;

    if (memory == NULL) {
        memory = pages(MEMORIES_AT_ONCE * sizeof(*memory));
        if (memory == NULL)
            return NULL;
        for (unsigned i = 1; i < MEMORIES_AT_ONCE - 1; i++)
            memory[i].next = &memory[i + 1];
        free_memories = &memory[1];
    } else {
        free_memories = memory->next;
    }
    *memory = (struct memory){.bytes = bytes, .device = device};
    return memory;
}

void backing_recycle(struct memory *memory)
{
    memory->next = free_memories;
    free_memories = memory;
}

void backing_drop_unheld(struct memory *memory, backing_freed *freed)
{
    if (memory->handles == 0 && memory->mappings == 0 && memory->calls == 0 && !backing_is_kept(memory))
        backing_lose(memory, freed);
}

static bool hold(uint64_t handle, struct memory *memory)
{
    struct held *known = lookup(&handles, handle);

    if (memory == NULL || (known == NULL && !make_room(&handles)))
        return false;
    if (known != NULL)
        known->extent++;
    else
        insert(&handles, (struct held){handle, 1, memory});
    memory->handles++;
    return true;
}

bool backing_created(uint64_t handle, unsigned device, uint64_t bytes)
{
    return make_room(&handles) && hold(handle, new_memory(device, bytes));
}

bool backing_knows(uint64_t handle)
{
    return lookup(&handles, handle) != NULL;
}

enum backing_imported backing_imported(uint64_t handle, const struct backing_import *import)
{
    struct held *known = lookup(&handles, handle);

    if (known != NULL)
        return hold(handle, known->memory) ? BACKING_KNOWN : BACKING_NO_MEMORY;
    if (!backing_created(handle, import->device, import->bytes))
        return BACKING_NO_MEMORY;
    backing_note_import(lookup(&handles, handle)->memory, import);
    return BACKING_NEW;
}

bool backing_retained(uint64_t handle, uint64_t address)
{
    struct held *known = lookup(&handles, handle), *mapping = mapping_at(address);

    if (known == NULL && mapping == NULL)
        return true;
    return hold(handle, known != NULL ? known->memory : mapping->memory);
}

uint64_t backing_handle_of(const struct memory *memory)
{
    for (size_t i = 0; i < handles.count; i++)
        if (handles.items[i].memory == memory)
            return handles.items[i].key;
    return 0;
}

static struct memory *export_begin(struct held *known, uint32_t *owner)
{
    if (known == NULL)
        return NULL;
    known->memory->calls++;
    *owner = known->memory->origin == BACKING_BORROWED ? known->memory->lender.pid : (uint32_t)getpid();
    return known->memory;
}

struct memory *backing_export_begin(uint64_t handle, uint32_t *owner)
{
    return export_begin(lookup(&handles, handle), owner);
}

struct memory *backing_export_begin_at(uint64_t address, uint32_t *owner)
{
    return export_begin(mapping_at(address), owner);
}

/* Out of the table first: as soon as the driver has released it, another thread may be given the same number. */
struct memory *backing_release_begin(uint64_t handle)
{
    struct held *known = lookup(&handles, handle);

    if (known == NULL)
        return NULL;
    struct memory *memory = known->memory;
    memory->calls++;
    memory->handles--;
    if (--known->extent == 0)
        cut(&handles, (size_t)(known - handles.items), (size_t)(known - handles.items) + 1);
    return memory;
}

/* What could neither be released nor recorded stays charged. */
void backing_release_end(struct memory *memory, uint64_t handle, bool released, backing_freed *freed)
{
    if (!released && !hold(handle, memory))
        memory->handles++;
    memory->calls--;
    backing_drop_unheld(memory, freed);
}

struct memory *backing_map_begin(uint64_t handle)
{
    struct held *known = lookup(&handles, handle);

    if (known == NULL)
        return NULL;
    known->memory->calls++;
    return known->memory;
}

bool backing_map_end(struct memory *memory, uint64_t address, uint64_t size, bool mapped, backing_freed *freed)
{
    bool remembered = !mapped || size == 0 || make_room(&mappings);

    if (mapped && size != 0 && remembered) {
        memory->mappings++;
        memory->mapped = memory->mapped > size ? memory->mapped : size;
        insert(&mappings, (struct held){address, size, memory});
    }
    memory->calls--;
    backing_drop_unheld(memory, freed);
    return remembered;
}

void backing_unmapped(uint64_t address, uint64_t size, backing_freed *freed)
{
    size_t from = find(&mappings, address), to = from;

    for (; to < mappings.count && mappings.items[to].key - address < size; to++) {
        mappings.items[to].memory->mappings--;
        backing_drop_unheld(mappings.items[to].memory, freed);
    }
    cut(&mappings, from, to);
}

/* ---- parts of sparse arrays ---- */

static struct tile {
    struct backing_part part;
    const void *owner;
    struct memory *memory;
} *tiles;
static size_t tile_count, tile_room;

static bool make_tile_room(void)
{
    size_t room = tile_room ? 2 * tile_room : FIRST_CAPACITY;

    if (tile_count < tile_room)
        return true;
    struct tile *bigger = pages(room * sizeof *bigger);
    if (bigger == NULL)
        return false;
    if (tile_count != 0)
        memcpy(bigger, tiles, tile_count * sizeof *bigger);
    if (tile_room != 0)
        munmap(tiles, tile_room * sizeof *bigger);
    tiles = bigger;
    tile_room = room;
    return true;
}

bool backing_part_mapped(struct memory *memory, const struct backing_part *part, const void *owner)
{
    bool remembered = make_tile_room();

    if (remembered)
        tiles[tile_count++] = (struct tile){*part, owner, memory};
    memory->mappings++;     /* what could not be recorded stays charged */
    memory->calls--;
    return remembered;
}

static bool lies_within(const struct backing_part *inner, const struct backing_part *outer)
{
    bool within = inner->array == outer->array && inner->kind == outer->kind && inner->level == outer->level && inner->layer == outer->layer;

    for (int i = 0; i < 3 && within; i++)
        within = inner->at[i] >= outer->at[i] && inner->at[i] + inner->extent[i] <= outer->at[i] + outer->extent[i];
    return within;
}

static bool is_meant(const struct tile *tile, const struct backing_part *part, const void *array, const void *owner)
{
    return part != NULL ? lies_within(&tile->part, part) : array != NULL ? tile->part.array == array : tile->owner == owner;
}

static void drop_tiles(const struct backing_part *part, const void *array, const void *owner, backing_freed *freed)
{
    size_t kept = 0;

    for (size_t i = 0; i < tile_count; i++) {
        if (!is_meant(&tiles[i], part, array, owner)) {
            tiles[kept++] = tiles[i];
            continue;
        }
        tiles[i].memory->mappings--;
        backing_drop_unheld(tiles[i].memory, freed);
    }
    tile_count = kept;
}

void backing_part_unmapped(const struct backing_part *part, backing_freed *freed)
{
    drop_tiles(part, NULL, NULL, freed);
}

void backing_array_gone(const void *array, backing_freed *freed)
{
    drop_tiles(NULL, array, NULL, freed);
}

void backing_owner_gone(const void *owner, backing_freed *freed)
{
    drop_tiles(NULL, NULL, owner, freed);
}

void backing_forget(void)
{
    if (tile_room != 0)
        munmap(tiles, tile_room * sizeof *tiles);
    tiles = NULL;
    tile_count = tile_room = 0;
    if (handles.capacity != 0)
        munmap(handles.items, handles.capacity * sizeof(*handles.items));
    if (mappings.capacity != 0)
        munmap(mappings.items, mappings.capacity * sizeof(*mappings.items));
    handles = mappings = (struct sorted){0};
    free_memories = NULL;
    backing_forget_shared();
}
