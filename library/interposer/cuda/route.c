/*
 * Routing by pointer: {the driver's function -> ours}, never by name, so that whichever variant of a function the driver chose (version, per-thread
 * stream), ours of the same signature answers, and one that we do not know stays the driver's.
 *
 * In: the hook table, the driver's symbols, and its cuGetProcAddress asked for exactly the version that brought each row (should it hand out other
 * addresses than its symbol table). Out: route(). The table is built by the first thread that needs it, and published whole: no lock.
 * Where a driver has one function under two names, and one is hooked, that one's hook answers for both: the code is the same.
 */
#include "route.h"

#include <stdlib.h>
#include <string.h>

#include "hooks.h"

enum { CAPACITY = 4096, FLAG_DEFAULT = 0, FLAG_LEGACY = 1, FLAG_THREAD = 2 };

struct pair {
    void *from, *to;
};

struct table {
    struct pair pairs[CAPACITY];
};

enum stream { STREAM_L, STREAM_T };

struct row {
    const char *base;
    int version;
    enum stream stream;
};

static const struct row rows[FUNCTION_COUNT] = {
#define CUDA(symbol, base, version, stream, parameters, arguments) {#base, version, STREAM_##stream},
#include "cuda_functions.h"
#undef CUDA
};

static void *const hooks[FUNCTION_COUNT] = {
#define HOOK(symbol) [FUNCTION_##symbol] = (void *)symbol,
#include "hooks.def"
#undef HOOK
};

static struct table *_Atomic published;
static _Thread_local bool asking;   /* a driver that answers through its own export would have us begin again */

_Static_assert(FUNCTION_COUNT * 3 < CAPACITY, "two answers and a symbol for each row leave room");

static struct pair *find(struct table *table, void *from)
{
    size_t place = (size_t)(((uintptr_t)from >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 52);
    while (table->pairs[place].from != NULL && table->pairs[place].from != from)
        place = (place + 1) % CAPACITY;
    return &table->pairs[place];
}

/* The first to claim an address keeps it. */
static void add(struct table *table, void *from, enum function function)
{
    struct pair *pair = find(table, from);
    if (from != NULL && pair->from == NULL)
        *pair = (struct pair){from, hooks[function] != NULL ? hooks[function] : from};
}

static void *ask(const struct row *row, uint64_t flag)
{
    void *entry = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult error = HAS(cuGetProcAddress_v2) ? DRIVER(cuGetProcAddress_v2, row->base, &entry, row->version, flag, &status)
                                              : DRIVER(cuGetProcAddress, row->base, &entry, row->version, flag);
    return error == CUDA_SUCCESS ? entry : NULL;
}

static void add_answers(struct table *table, enum function function)
{
    const struct row *row = &rows[function];
    if (row->stream == STREAM_T) {
        add(table, ask(row, FLAG_THREAD), function);
        return;
    }
    add(table, ask(row, FLAG_DEFAULT), function);
    add(table, ask(row, FLAG_LEGACY), function);
}

static int by_version(const void *one, const void *other)
{
    return rows[*(const enum function *)one].version - rows[*(const enum function *)other].version;
}

/* What is surely a hooked function's comes first. Rows that are not hooked claim their addresses too, and of what the driver's symbols do not show older
 * ones first: a driver without a variant answers with an older one, whose signature is another. */
static void fill(struct table *table)
{
    enum function order[FUNCTION_COUNT];
    for (int hooked = 1; hooked >= 0; hooked--) {
        for (int i = 0; i < FUNCTION_COUNT; i++) {
            if ((hooks[i] != NULL) == hooked)
                add(table, real_address((enum function)i), (enum function)i);
        }
    }
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        order[i] = (enum function)i;
        if (hooks[i] != NULL && real_has(order[i]))
            add_answers(table, order[i]);
    }
    qsort(order, FUNCTION_COUNT, sizeof order[0], by_version);
    for (int i = 0; i < FUNCTION_COUNT; i++)
        add_answers(table, order[i]);
}

static struct table *routes(void)
{
    struct table *table = atomic_load_explicit(&published, memory_order_acquire), *none = NULL;
    if (table != NULL)
        return table;
    table = calloc(1, sizeof *table);
    asking = true;
    if (table != NULL)
        fill(table);
    asking = false;
    if (table != NULL && !atomic_compare_exchange_strong(&published, &none, table)) {
        free(table);
        table = none;
    }
    return table;
}

bool route_is_asking(void)
{
    return asking;
}

void *route(void *pointer)
{
    struct table *table = routes();
    if (table == NULL || pointer == NULL)
        return pointer;
    struct pair *pair = find(table, pointer);
    return pair->from == NULL ? pointer : pair->to;
}

/* The version that brought the newest function that we stand in front of under this name; 0: there is none. */
static int newest_hooked(const char *base)
{
    int newest = 0;
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        if (hooks[i] != NULL && rows[i].version > newest && strcmp(rows[i].base, base) == 0)
            newest = rows[i].version;
    }
    return newest;
}

/* An older one that the table leaves out (of 32-bit addresses) is no newer one. */
bool route_is_unknown(const char *base, void *pointer, int version)
{
    struct table *table = routes();
    if (table == NULL || find(table, pointer)->from != NULL)
        return false;
    int newest = newest_hooked(base);
    return newest != 0 && version > newest;
}
