/* See graph.h. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "graph_address.h"

struct graph *graph_of(CUgraph handle)
{
    return object_is(handle, OBJECT_GRAPH) ? (struct graph *)handle : NULL;
}

struct node *node_of(CUgraphNode handle)
{
    return object_is(handle, OBJECT_NODE) ? (struct node *)handle : NULL;
}

struct graph *graph_make(void)
{
    struct graph *graph = object_begin(OBJECT_GRAPH, sizeof *graph);
    if (graph != NULL)
        graph->last = &graph->first;
    return graph;
}

bool nodes_valid(const struct graph *graph, struct node *const *nodes, size_t count)
{
    if (count > 0 && nodes == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (!object_is(nodes[i], OBJECT_NODE) || nodes[i]->graph != graph)
            return false;
        for (size_t other = 0; other < i; other++) {
            if (nodes[other] == nodes[i])
                return false;
        }
    }
    return true;
}

struct node *node_make(struct graph *graph, CUgraphNodeType type, struct node *const *follows, size_t count)
{
    struct node *node = object_begin(OBJECT_NODE, sizeof *node);
    if (node == NULL)
        return NULL;
    node->type = node->action.type = type;
    node->action.work.kind = WORK_MARKER;
    node->follows = calloc(count == 0 ? 1 : count, sizeof *node->follows);
    if (node->follows == NULL) {
        object_end(node);
        return NULL;
    }
    if (count > 0)
        memcpy(node->follows, follows, count * sizeof *follows);
    node->follow_count = count;
    node->graph = graph;
    node->number = graph->count++;
    *graph->last = node;
    graph->last = &node->next;
    return node;
}

bool node_follow(struct node *node, struct node *after)
{
    struct node **grown = realloc(node->follows, (node->follow_count + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    grown[node->follow_count++] = after;
    node->follows = grown;
    return true;
}

bool node_set_memory(struct node *node, CUdeviceptr address)
{
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !graph_address_hold(address))
        return false;
    node->memory = address;
    return true;
}

bool node_set_allocation(struct node *node, const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    node->memory_bytes = params->bytesize;
    node->memory_device = params->poolProps.location.id;
    return node_set_memory(node, params->dptr);
}

int graph_unfreed(const struct graph *graph, CUdeviceptr address)
{
    int unfreed = 0;
    for (const struct node *at = graph->first; at != NULL; at = at->next) {
        if (at->memory == address)
            unfreed += at->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? 1 : -1;
    }
    return unfreed;
}

static bool is_allocated(const struct graph *graph, CUdeviceptr address)
{
    for (const struct node *at = graph->first; at != NULL; at = at->next) {
        if (at->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && at->memory == address)
            return true;
    }
    return false;
}

size_t graph_free_addresses(const struct graph *graph, struct node *const *follows, size_t count, CUdeviceptr *out, size_t room)
{
    size_t found = 0;
    for (const struct node *at = graph->first; at != NULL && found < room; at = at->next) {
        bool before = false;
        if (at->type != CU_GRAPH_NODE_TYPE_MEM_FREE || graph_unfreed(graph, at->memory) != 0 || !is_allocated(graph, at->memory))
            continue;
        for (size_t i = 0; i < count && !before; i++)
            before = node_is_before(at, follows[i]);
        if (before)
            out[found++] = at->memory;
    }
    return found;
}

static void drop_kernel(struct kernel_call *kernel)
{
    free(kernel->buffer);
    free(kernel->pointers);
    memset(kernel, 0, sizeof *kernel);
}

/* The node's memory alone. */
static void release(struct node *node)
{
    drop_kernel(&node->kernel);
    if (node->event != NULL)
        event_let_go(node->event);
    if (node->child != NULL)
        graph_end(node->child);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->memory != 0)
        graph_address_let_go(node->memory);
    free(node->follows);
    object_end(node);
}

static void forget(struct node *node, const struct node *gone)
{
    size_t kept = 0;
    for (size_t i = 0; i < node->follow_count; i++) {
        if (node->follows[i] != gone)
            node->follows[kept++] = node->follows[i];
    }
    node->follow_count = kept;
}

void node_end(struct node *node)
{
    struct graph *graph = node->graph;
    for (struct node **at = &graph->first; *at != NULL; at = &(*at)->next) {
        if (*at != node)
            continue;
        *at = node->next;
        if (graph->last == &node->next)
            graph->last = at;
        break;
    }
    for (struct node *at = graph->first; at != NULL; at = at->next)
        forget(at, node);
    graph->count--;
    release(node);
}

void graph_end(struct graph *graph)
{
    for (struct node *node = graph->first, *following; node != NULL; node = following) {
        following = node->next;
        release(node);
    }
    object_end(graph);
}

bool node_set_kernel(struct node *node, const struct launch *launch, const struct work *work)
{
    const struct ptx_entry *entry = launch->function->entry;
    struct kernel_call kernel = {.handle = launch->handle, .function = launch->function, .shared_bytes = launch->shared_bytes};
    memcpy(kernel.grid, launch->grid, sizeof kernel.grid);
    memcpy(kernel.block, launch->block, sizeof kernel.block);
    kernel.buffer = calloc(1, entry->parameter_bytes + 1);
    kernel.pointers = calloc(entry->parameter_count + 1, sizeof *kernel.pointers);
    if (kernel.buffer == NULL || kernel.pointers == NULL || !launch_copy_parameters(launch, kernel.buffer)) {
        drop_kernel(&kernel);
        return false;
    }
    for (unsigned i = 0; i < entry->parameter_count; i++)
        kernel.pointers[i] = kernel.buffer + entry->parameters[i].offset;
    drop_kernel(&node->kernel);
    node->kernel = kernel;
    node->action.work = *work;
    return true;
}

static bool copy_kernel(struct node *to, const struct node *from)
{
    struct launch launch = {.handle = from->kernel.handle, .function = from->kernel.function, .shared_bytes = from->kernel.shared_bytes};
    memcpy(launch.grid, from->kernel.grid, sizeof launch.grid);
    memcpy(launch.block, from->kernel.block, sizeof launch.block);
    launch.parameters = from->kernel.pointers;
    return node_set_kernel(to, &launch, &from->action.work);
}

static bool copy_content(struct node *to, const struct node *from)
{
    to->action = from->action;
    to->function = from->function;
    to->data = from->data;
    to->event = from->event;
    if (to->event != NULL)
        event_hold(to->event);
    to->memory_bytes = from->memory_bytes;
    to->memory_device = from->memory_device;
    if (from->memory != 0 && !node_set_memory(to, from->memory))
        return false;
    if (from->child != NULL && (to->child = graph_clone(from->child)) == NULL)
        return false;
    return from->type != CU_GRAPH_NODE_TYPE_KERNEL || copy_kernel(to, from);
}

/* The node of the clone that stands where `node` stands in the original. */
static struct node *twin(const struct graph *original, const struct graph *clone, const struct node *node)
{
    const struct node *at = original->first;
    struct node *other = clone->first;
    while (at != node) {
        at = at->next;
        other = other->next;
    }
    return other;
}

struct graph *graph_clone(const struct graph *graph)
{
    struct graph *clone = graph_make();
    bool done = clone != NULL;
    for (const struct node *at = graph->first; at != NULL && done; at = at->next) {
        struct node *node = node_make(clone, at->type, NULL, 0);
        done = node != NULL && copy_content(node, at);
    }
    struct node *to = done ? clone->first : NULL;
    for (const struct node *at = graph->first; at != NULL && done; at = at->next, to = to->next) {
        for (size_t i = 0; i < at->follow_count && done; i++)
            done = node_follow(to, twin(graph, clone, at->follows[i]));
    }
    if (done || clone == NULL)
        return clone;
    graph_end(clone);
    return NULL;
}

static bool all_numbered(const struct node *node, unsigned below)
{
    for (size_t i = 0; i < node->follow_count; i++) {
        if (node->follows[i]->number >= below)
            return false;
    }
    return true;
}

struct node *graph_number(struct graph *graph)
{
    unsigned done = 0;
    for (struct node *at = graph->first; at != NULL; at = at->next)
        at->number = UINT32_MAX;
    for (bool moved = true; moved && done < graph->count;) {
        moved = false;
        for (struct node *at = graph->first; at != NULL; at = at->next) {
            if (at->number != UINT32_MAX || !all_numbered(at, UINT32_MAX))
                continue;
            at->number = done++;
            moved = true;
        }
    }
    for (struct node *at = graph->first; at != NULL; at = at->next) {
        if (at->number == UINT32_MAX)
            return at;
    }
    return NULL;
}

bool node_is_before(const struct node *one, const struct node *other)
{
    if (one == other)
        return true;
    for (size_t i = 0; i < other->follow_count; i++) {
        if (node_is_before(one, other->follows[i]))
            return true;
    }
    return false;
}
