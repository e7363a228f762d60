/* See graph_place.h. */
#include <stdlib.h>
#include <string.h>

#include "graph_place.h"
#include "session.h"

struct exec *exec_of(CUgraphExec handle)
{
    struct exec *exec = (struct exec *)handle;
    return object_is(handle, OBJECT_EXEC) && !exec->ended ? exec : NULL;
}

static struct step *add_step(struct exec *exec)
{
    if (exec->count == exec->room) {
        unsigned room = exec->room == 0 ? 16 : exec->room * 2;
        struct step *grown = realloc(exec->steps, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        exec->steps = grown;
        exec->room = room;
    }
    struct step *step = &exec->steps[exec->count++];
    memset(step, 0, sizeof *step);
    step->action.work.kind = WORK_MARKER;
    step->type = CU_GRAPH_NODE_TYPE_EMPTY;
    return step;
}

static bool follow(struct step *step, unsigned other)
{
    unsigned *grown = realloc(step->follows, (step->follow_count + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    grown[step->follow_count++] = other;
    step->follows = grown;
    return true;
}

static void fill(struct step *step, const struct node *node)
{
    step->type = node->type;
    step->action = node->action;
    step->function = node->function;
    step->data = node->data;
    step->event = node->event;
    step->memory = node->memory;
    step->node = node;
    step->handle = node->kernel.handle;
    step->context = node->kernel.function != NULL ? node->kernel.function->context : NULL;
    if (step->event != NULL)
        event_hold(step->event);
}

static bool flatten(struct exec *exec, struct graph *graph, const unsigned *begin, struct node **wrong);

/* A child is what lies between an empty step before all of it and one behind. */
static bool flatten_child(struct exec *exec, const struct node *node, unsigned *last, struct node **wrong)
{
    unsigned begin = exec->count - 1;
    if (!flatten(exec, node->child, &begin, wrong))
        return false;
    unsigned end = exec->count;
    struct step *step = add_step(exec);
    bool done = step != NULL;
    for (unsigned i = begin; i < end && done; i++)
        done = follow(&exec->steps[end], i);
    *last = end;
    return done;
}

static bool flatten_node(struct exec *exec, const struct node *node, const unsigned *begin, unsigned *lasts, struct node **wrong)
{
    struct step *step = add_step(exec);
    bool done = step != NULL;
    if (!done)
        return false;
    for (size_t i = 0; i < node->follow_count && done; i++)
        done = follow(step, lasts[node->follows[i]->number]);
    if (begin != NULL && node->follow_count == 0)
        done = done && follow(step, *begin);
    fill(step, node);
    lasts[node->number] = exec->count - 1;
    return done && (node->child == NULL || flatten_child(exec, node, &lasts[node->number], wrong));
}

/* The steps of a graph behind those that are there; roots follow `begin` where one is given. False: no memory, or a cycle. */
static bool flatten(struct exec *exec, struct graph *graph, const unsigned *begin, struct node **wrong)
{
    if ((*wrong = graph_number(graph)) != NULL)
        return false;
    unsigned *lasts = calloc(graph->count + 1, sizeof *lasts);
    const struct node **order = calloc(graph->count + 1, sizeof *order);
    bool done = lasts != NULL && order != NULL;
    for (struct node *at = graph->first; at != NULL && done; at = at->next)
        order[at->number] = at;
    for (unsigned i = 0; i < graph->count && done; i++)
        done = flatten_node(exec, order[i], begin, lasts, wrong);
    free(lasts);
    free(order);
    return done;
}

static void drop_steps(struct exec *exec)
{
    for (unsigned i = 0; i < exec->count; i++) {
        if (exec->steps[i].event != NULL)
            event_let_go(exec->steps[i].event);
        free(exec->steps[i].follows);
    }
    free(exec->steps);
    exec->steps = NULL;
    exec->count = exec->room = 0;
}

CUresult exec_make(struct graph *graph, uint64_t flags, struct exec **out, struct node **wrong)
{
    struct exec *exec = object_begin(OBJECT_EXEC, sizeof *exec);
    *wrong = NULL;
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->flags = flags;
    exec->source = graph_clone(graph);
    if (exec->source != NULL && flatten(exec, graph, NULL, wrong)) {
        *out = exec;
        return CUDA_SUCCESS;
    }
    exec_end(exec);
    return *wrong != NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
}

void exec_end(struct exec *exec)
{
    exec->ended = true;
    if (exec->holds > 0)
        return;
    drop_steps(exec);
    if (exec->source != NULL)
        graph_end(exec->source);
    object_end(exec);
}

void exec_hold(struct exec *exec)
{
    exec->holds++;
}

void exec_let_go(struct exec *exec)
{
    if (--exec->holds == 0 && exec->ended)
        exec_end(exec);
}

struct step *exec_step(struct exec *exec, const struct node *node)
{
    for (unsigned i = 0; i < exec->count; i++) {
        if (exec->steps[i].node == node)
            return &exec->steps[i];
    }
    return NULL;
}

static bool same_follows(const struct step *one, const struct step *other)
{
    return one->follow_count == other->follow_count &&
           (one->follow_count == 0 || memcmp(one->follows, other->follows, one->follow_count * sizeof *one->follows) == 0);
}

static CUgraphExecUpdateResult compare(const struct exec *exec, const struct exec *fresh, unsigned *at)
{
    for (*at = 0; *at < exec->count && *at < fresh->count; (*at)++) {
        const struct step *one = &exec->steps[*at], *other = &fresh->steps[*at];
        if (one->type != other->type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (!same_follows(one, other))
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (one->context != other->context)
            return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    }
    return exec->count == fresh->count ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
}

static void swap_content(struct exec *one, struct exec *other)
{
    struct step *steps = one->steps;
    struct graph *source = one->source;
    unsigned count = one->count, room = one->room;
    one->steps = other->steps;
    one->source = other->source;
    one->count = other->count;
    one->room = other->room;
    other->steps = steps;
    other->source = source;
    other->count = count;
    other->room = room;
}

/* A later ExecKernelNodeSetParams names nodes of the graph that it was made from. */
static void keep_names(const struct exec *from, struct exec *to)
{
    for (unsigned i = 0; i < to->count; i++)
        to->steps[i].node = from->steps[i].node;
}

CUgraphExecUpdateResult exec_update(struct exec *exec, struct graph *graph, struct node **wrong)
{
    struct exec *fresh;
    unsigned at = 0;
    if (exec_make(graph, exec->flags, &fresh, wrong) != CUDA_SUCCESS)
        return CU_GRAPH_EXEC_UPDATE_ERROR;
    CUgraphExecUpdateResult result = compare(exec, fresh, &at);
    if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        keep_names(exec, fresh);
        swap_content(exec, fresh);
    } else {
        *wrong = (struct node *)(at < fresh->count ? fresh->steps[at].node : NULL);
    }
    exec_end(fresh);
    return result;
}

static uint64_t later(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static uint64_t place_step(struct gpu *gpu, struct step *step, uint64_t earliest)
{
    const struct work *work = &step->action.work;
    if (step->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        event_place(step->event, ++step->event->recorded, gpu, earliest, clock_ns());
    if (step->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && step->event->gpu == gpu)
        return later(earliest, step->event->v);
    if (work->kind == WORK_COPY)
        return gpu->copy_tail = gpu_run(gpu, later(earliest, gpu->copy_tail), work->cost_ns);
    if (work->kind == WORK_KERNEL && work->wide)
        return gpu->wide_tail = gpu_run(gpu, later(earliest, gpu->wide_tail), work->cost_ns);
    return work->kind == WORK_KERNEL ? gpu_run(gpu, earliest, work->cost_ns) : earliest;
}

void graph_place(struct stream *stream, struct exec *exec, unsigned from, unsigned to)
{
    struct gpu *gpu = stream->gpu;
    uint64_t begin = stream_earliest(stream), end;
    if (exec->gpu == gpu)
        begin = later(begin, exec->tail);
    end = begin;
    for (unsigned i = from; i < to; i++) {
        struct step *step = &exec->steps[i];
        uint64_t earliest = begin;
        for (unsigned other = 0; other < step->follow_count; other++) {
            if (step->follows[other] >= from) /* what was placed before this stretch has ended before it begins */
                earliest = later(earliest, exec->steps[step->follows[other]].end);
        }
        step->end = place_step(gpu, step, earliest);
        end = later(end, step->end);
    }
    exec->gpu = gpu;
    exec->tail = end;
    stream_reach(stream, end);
}
