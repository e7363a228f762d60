/* Nodes; see graph_nodes.h. */
#include "graph_nodes.h"

#include <stdlib.h>

#include "interposer/cuda/hooks.h"
#include "virtual_hooks.h"

static const uint64_t PAGE = UINT64_C(2) << 20;
enum { FREED_ONLY = -1 };

struct list {
    struct graph_range *items;
    size_t count, room;
};

static bool add(struct list *list, struct graph_range item)
{
    if (list->count == list->room) {
        size_t room = list->room == 0 ? 16 : 2 * list->room;
        struct graph_range *more = realloc(list->items, room * sizeof *more);
        if (more == NULL)
            return false;
        list->items = more;
        list->room = room;
    }
    list->items[list->count++] = item;
    return true;
}

static bool read_allocation(CUgraphNode node, struct list *list)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUdevice device;

    if (DRIVER(cuGraphMemAllocNodeGetParams, node, &params) != CUDA_SUCCESS || !virtual_device_at(&params.poolProps.location, &device))
        return true;
    return add(list, (struct graph_range){.address = params.dptr, .bytes = params.bytesize, .device = device, .balance = 1});
}

static bool read_free(CUgraphNode node, struct list *list)
{
    CUdeviceptr address;

    if (DRIVER(cuGraphMemFreeNodeGetParams, node, &address) != CUDA_SUCCESS)
        return true;
    return add(list, (struct graph_range){.address = address, .device = FREED_ONLY, .balance = -1});
}

static bool read_graph(CUgraph graph, struct list *list);

static bool read_node(CUgraphNode node, struct list *list)
{
    CUgraphNodeType type;
    CUgraph child;

    if (DRIVER(cuGraphNodeGetType, node, &type) != CUDA_SUCCESS)
        return true;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return read_allocation(node, list);
    if (type == CU_GRAPH_NODE_TYPE_MEM_FREE)
        return read_free(node, list);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && DRIVER(cuGraphChildGraphNodeGetGraph, node, &child) == CUDA_SUCCESS)
        return read_graph(child, list);
    return true;
}

/* A graph that the driver cannot list is one that it will not instantiate. */
static bool read_graph(CUgraph graph, struct list *list)
{
    size_t count = 0;
    bool done = true;

    if (DRIVER(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return true;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes == NULL)
        return false;
    if (DRIVER(cuGraphGetNodes, graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count && done; i++)
        done = nodes[i] == NULL || read_node(nodes[i], list);
    free(nodes);
    return done;
}

/* By address; of equal ones those that allocate come first. */
static int compare(const void *one, const void *other)
{
    const struct graph_range *a = one, *b = other;

    if (a->address != b->address)
        return a->address < b->address ? -1 : 1;
    return b->balance - a->balance;
}

/* One entry for each address. */
static void merge(struct list *list)
{
    size_t kept = 0;

    qsort(list->items, list->count, sizeof *list->items, compare);
    for (size_t i = 0; i < list->count; i++) {
        const struct graph_range *item = &list->items[i];
        if (kept == 0 || list->items[kept - 1].address != item->address) {
            list->items[kept++] = *item;
            continue;
        }
        list->items[kept - 1].balance += item->balance;
        if (item->bytes > list->items[kept - 1].bytes)
            list->items[kept - 1].bytes = item->bytes;
    }
    list->count = kept;
}

static bool is_freed_only(const struct graph_range *item)
{
    return item->device == FREED_ONLY;
}

/* Those that others allocated go to the end; the order of the rest stays. */
static size_t set_foreign_apart(struct list *list, struct graph_range *out)
{
    size_t own = 0, at;

    for (size_t i = 0; i < list->count; i++)
        if (!is_freed_only(&list->items[i]))
            out[own++] = list->items[i];
    at = own;
    for (size_t i = 0; i < list->count; i++)
        if (is_freed_only(&list->items[i]))
            out[at++] = list->items[i];
    return own;
}

static struct graph_part *part_of(struct graph_memory *memory, int device)
{
    for (unsigned i = 0; i < memory->part_count; i++)
        if (memory->parts[i].device == device)
            return &memory->parts[i];
    if (memory->part_count == LIMITS_MAX_DEVICES)
        return NULL;
    memory->parts[memory->part_count] = (struct graph_part){.device = device};
    return &memory->parts[memory->part_count++];
}

/* The pages of a range from `*covered` on, which follows: ranges come by address. */
static uint64_t uncovered(const struct graph_range *range, uint64_t *covered)
{
    uint64_t begin = range->address / PAGE * PAGE, end = (range->address + range->bytes + PAGE - 1) / PAGE * PAGE;

    if (begin < *covered)
        begin = *covered;
    if (end <= begin)
        return 0;
    *covered = end;
    return end - begin;
}

static void sum_up(struct graph_memory *memory, int device, struct graph_part *part)
{
    uint64_t covered = 0, covered_left = 0, all = 0;

    for (size_t i = 0; i < memory->range_count; i++) {
        struct graph_range *range = &memory->ranges[i];
        if (range->device != device)
            continue;
        all += uncovered(range, &covered);
        range->left = range->balance > 0 ? uncovered(range, &covered_left) : 0;
        part->left += range->left;
    }
    part->transient = all - part->left;
}

static void sum_up_all(struct graph_memory *memory)
{
    for (size_t i = 0; i < memory->range_count; i++) {
        unsigned known = memory->part_count;
        struct graph_part *part = part_of(memory, memory->ranges[i].device);
        if (part != NULL && memory->part_count != known)
            sum_up(memory, part->device, part);
    }
}

bool graph_nodes_read(CUgraph graph, struct graph_memory **memory)
{
    struct list list = {0};
    bool done = read_graph(graph, &list);

    *memory = NULL;
    if (done && list.count != 0) {
        *memory = calloc(1, sizeof **memory + list.count * sizeof *list.items);
        done = *memory != NULL;
    }
    if (done && *memory != NULL) {
        merge(&list);
        (*memory)->range_count = set_foreign_apart(&list, (*memory)->ranges);
        (*memory)->foreign_count = list.count - (*memory)->range_count;
        sum_up_all(*memory);
    }
    free(list.items);
    return done;
}
