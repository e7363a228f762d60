/*
 * A process: one thread that launches, asks, waits and synchronises as its workload says, through the library's own queues.
 *
 * In: the time. Out: launches. Not here: the GPU, the order in which things happen.
 */
#include "sim.h"

static const struct workload workloads[] = {
    {"small", 10000, 0, 0, 2500, 0, 1, 1, true},
    {"medium", 1000000, 0, 0, 4000, 0, 1, 1, true},
    {"gemm", 20000000, 0, 1, 5000, 0, 1, 1, true},
    {"step", 100000, 0, 300, 5000, 20000, 1, 6, true},
    {"graph", 20000000, 0, 0, 10000, 0, 1, 1, true},
    {"long", 2000000000, 0, 1, 10000, 0, 1, 1, true},
    {"endless", 1000000000000, 0, 1, 10000, 0, 1, 1, true},
    {"longasync", 500000000, 0, 0, 10000, 0, 1, 1, true},
    {"eager", 10000, 0, 0, 30000, 0, 1, 20, true},
    {"tinysync", 10000, 0, 1, 5000, 0, 1, 1, true},
    {"varied", 50000, 950000, 0, 4000, 0, 1, 1, true},
    {"streams", 400000, 0, 0, 4000, 0, 4, 2, false},
    {"deepstreams", 50000, 0, 1024, 1000, 0, 4, 1, false, .deep = 256},
    {"shallowstreams", 50000, 0, 128, 1000, 0, 4, 1, false, .deep = 32},
    {"burst", 20000, 0, 25, 4000, 5000000, 1, 3, true},
    {"model", 40000, 200000, 120, 6000, 100000, 1, 40, true},
    {"waits", 300000, 0, 8, 5000, 0, 1, 1, true, 5000000},
    {"mixed", 200000, 0, 16, 5000, 0, 1, 4, true, 30000},
    {"mixedsizes", 2000000, 0, 16, 5000, 0, 1, 1, true, 30000, .tiny = 1000},
    {"mixedelsewhere", 200000, 0, 16, 5000, 0, 1, 4, true, 30000, true},
    {"persistent", 100000, 0, 1, 5000, 0, 1, 2, false, .first = 1000000000000},
    {"grids", 20000, 0, 64, 4000, 0, 1, 2, true, .grids = 1000000},
    {"rounds", 200000, 0, 4, 4000, 0, 4, 1, true},
    {"unevenrounds", 200000, 0, 4, 4000, 0, 4, 1, true, .uneven = true},
    {"turns", 1000000, 4000000, 8, 4000, 0, 4, 1, true, .by = SMALL_GRID},
    {"sizesteps", 20000000, 0, 1, 4000, 0, 1, 1, true, .tiny = 1000},
    {"grownsteps", 5000000, 0, 2, 4000, 0, 1, 2, true, .grows = 1000},
    {"grownfive", 1000000, 0, 5, 4000, 0, 1, 5, true, .grows = 1000},
    {"grownelsewhere", 1000000, 0, 5, 4000, 0, 1, 5, true, 30000, true, .grows = 1000},
    {"smallstreams", 5000, 0, 960, 2000, 100000, 4, 1, false},
    {"shapes", 20000, 0, 64, 4000, 0, 1, 2, true, .grids = 4000, .scaled = true},
    {"sizes", 50000, 5000000, 0, 4000, 0, 1, 1, true},
    {"amongsmall", 10000, 5000000, 0, 4000, 0, 1, 2, true, .by = MIXED},
    {"beside", 20000000, 0, 0, 4000, 0, 2, 1, false, .by = MIXED, .tiny = 1000},
    {"grown", 5000000, 0, 0, 4000, 0, 1, 1, true, .by = SMALL_GRID, .grows = 1000},
    {"variedsmall", 5000000, 15000000, 0, 4000, 0, 1, 1, true, .by = SMALL_GRID},
    {"variedtiny", 50000, 150000, 0, 4000, 0, 1, 1, true, .by = SMALL_GRID},
    {"variedtogether", 5000000, 15000000, 0, 4000, 0, 1, 1, true, .by = TOGETHER},
    {"variedgraph", 5000000, 15000000, 0, 4000, 0, 1, 1, true, .by = GRAPH},
    {"hidesmall", 20000000, 0, 0, 4000, 0, 1, 1, true, .by = SMALL_GRID, .tiny = 1000},
    {"hidetogether", 20000000, 0, 0, 4000, 0, 1, 1, true, .by = TOGETHER, .tiny = 1000},
    {"hidegraph", 20000000, 0, 0, 4000, 0, 1, 1, true, .by = GRAPH, .tiny = 1000},
    {"hidelong", 200000000, 0, 0, 4000, 0, 1, 1, true, .by = SMALL_GRID, .tiny = 10000},
    {"hidenew", 200000000, 0, 0, 4000, 0, 1, 1, true, .by = SMALL_GRID, .fresh = true},
    {"hideamong", 200000000, 0, 0, 4000, 0, 1, 2, true, .by = MIXED, .tiny = 10000, .rare = 130},
    {"hidestreams", 20000000, 0, 0, 4000, 0, 4, 1, false, .by = SMALL_GRID, .tiny = 1000},
    {"hidewide", 20000000, 0, 0, 4000, 0, 1, 1, true, .by = WIDE_GRID, .tiny = 1000},
};

enum { FEW_BLOCKS = 32 };

const struct workload *workload_named(const char *name)
{
    for (unsigned i = 0; i < sizeof workloads / sizeof workloads[0]; i++) {
        if (strcmp(workloads[i].name, name) == 0)
            return &workloads[i];
    }
    exit(2);
}

uint64_t late(uint64_t at, uint64_t jitter)
{
    return at + jitter / 4 + random_below(jitter);
}

static void begin(struct process *process)
{
    struct container *container = process->container;
    unsigned place = container->processes++;
    atomic_store(&container->region->slots[place].pid, place + 1);
    atomic_store(&container->region->slot_high, container->processes);
    atomic_store(&container->row->slot_high, container->processes);
    struct budget budget = {container->region, &container->region->slots[place].use[0], 0, 0};
    process->limiter = malloc(sizeof *process->limiter);
    struct estimates *estimates = calloc(1, sizeof *estimates);
    estimates->few_blocks = FEW_BLOCKS;
    limiter_init(process->limiter, &driver, estimates, budget);
    process->limiter->presence.row = rows ? container->row : NULL;
    process->limiter->presence.own = rows ? &container->row->slots[place] : NULL;
    limiter_set(process->limiter, container->cores, container->soft);
    timebase_init(&process->timebase, &driver, NULL);
    for (unsigned i = 0; i < STREAMS; i++)
        queue_init(&process->queues[i], process->limiter, &process->timebase, (CUstream)(void *)&process->streams[i]);
    process->tick = now_ns;
    process->doing = DO_LAUNCH;
}

static struct activity_row nothing;

/* Neighbours are what neighbours.c would have found. */
void find_neighbours(struct process *process)
{
    struct neighbours *neighbours = &process->limiter->neighbours;
    neighbours->count = 0;
    neighbours->readable = true;
    neighbours->hidden = process->container->unreadable || process->container->assumed != 0;
    for (unsigned i = 0; i < container_count && rows; i++) {
        if (&containers[i] == process->container)
            continue;
        struct neighbour *neighbour = &neighbours->found[neighbours->count++];
        neighbour->row = containers[i].unreadable || containers[i].silent ? &nothing : containers[i].row;
        neighbour->read = !containers[i].unreadable;
        neighbour->told = told;
        neighbour->assumed_cores = told ? containers[i].assumed : 0;
        if (told)
            neighbour->share = (struct share){containers[i].cores, containers[i].soft, 0};
    }
}

static bool is_small(const struct workload *load, uint64_t launch)
{
    return load->by == SMALL_GRID || (load->by == MIXED && launch % 2 == 1);
}

static uint32_t grid_of(const struct workload *load, uint64_t launch)
{
    if (load->by == GRAPH)
        return 0;
    if (is_small(load, launch))
        return FEW_BLOCKS;
    return load->grids == 0 ? 264 : 264 + (uint32_t)(launch * 2654435761u % load->grids);
}

/* Each kind is a function. */
static struct launch_key choose_key(const struct process *process)
{
    const struct workload *load = process->workload;
    uint64_t kind = load->fresh ? process->launches : load->first == 0 ? process->launches % load->kinds : process->launches != 0;
    struct launch_key key = launch_key((const char *)load + kind, grid_of(load, process->launches), 1, 1, 256, 1, 1);
    key.dimensions[2] |= load->by == TOGETHER ? LAUNCH_TOGETHER : 0;
    return key;
}

static bool is_tiny(const struct workload *load, uint64_t launch)
{
    if (load->tiny == 0 || load->rare != 0)
        return load->tiny != 0 && launch % load->rare != 0;
    return launch / load->streams % 2 == 0 && (load->by != MIXED || is_small(load, launch));
}

static void choose(struct process *process)
{
    const struct workload *load = process->workload;
    struct launch_key key = choose_key(process);
    bool small = is_small(load, process->launches);
    uint64_t kind_cost = load->cost * (2 * (process->launches % load->kinds) + 1) / load->kinds;
    if (load->scaled)
        kind_cost = 2000 + kind_cost * (uint32_t)key.dimensions[0] / 1000;
    if (is_tiny(load, process->launches))
        kind_cost /= load->tiny;
    if (process->launches < load->grows)
        kind_cost /= 100;
    process->stream = (unsigned)(process->launches / (load->deep == 0 ? 1 : load->deep) % load->streams);
    process->cost = kind_cost + (load->by == MIXED && small ? 0 : random_below(load->spread));
    if (load->first != 0) {
        process->stream = process->launches != 0;
        process->cost = process->launches != 0 ? load->cost : load->first;
    }
    process->estimate = guesses_find(process->limiter->estimates, &key);
    if (bias != 1 && estimate_ns(process->estimate) == 0)
        estimate_learn(process->estimate, (uint64_t)((double)process->cost * bias));
}

static void put_wait(struct process *process, struct stream_queue *queue)
{
    const struct workload *load = process->workload;
    if (load->wait == 0 || process->launches % load->per_step == 0)
        return;
    if (!load->elsewhere)
        queue_interrupt(queue);
    foreign_work_put(queue->stream);
    enqueue(process, &process->streams[process->stream], (struct item){.kind = ITEM_WAIT, .ns = load->wait});
}

/* The host waits until a launch is over. */
static void synchronise(struct process *process, uint64_t launch)
{
    process->doing = DO_SYNC;
    process->synced_launch = launch;
    process->synced = process->launch_ends[launch % QUEUE];
}

static bool ends_step(const struct process *process)
{
    const struct workload *load = process->workload;
    if (load->uneven || load->per_step == 0)
        return load->uneven && random_below(load->per_step) == 0;
    return process->launches % load->per_step == 0 && (load->first == 0 || process->launches != 1);
}

static void launched(struct process *process, struct stream_queue *queue, uint64_t at)
{
    const struct workload *load = process->workload;
    uint64_t number = process->launches++;
    enqueue(process, &process->streams[process->stream], (struct item){ITEM_LAUNCH, process->cost, load->wide, number});
    queue_took(queue, process->estimate, process->estimate_ns, at);
    put_wait(process, queue);
    process->container->moved = now_ns;
    process->wake = now_ns + load->host;
    process->doing = DO_LAUNCH;
    if (ends_step(process))
        synchronise(process, number);
    else if (process->launches > QUEUE && process->launch_ends[process->launches % QUEUE] > now_virtual)
        synchronise(process, process->launches - QUEUE);
}

/* It will sleep: its other queues are closed or paused, as thread.c does. */
static void pause_others(struct process *process, const struct stream_queue *asleep)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream_queue *queue = &process->queues[i];
        if (queue == asleep || queue->open == NULL)
            continue;
        if (queue->last == NULL || mark_is_reached(queue->last))
            queue_close(queue, false);
        else
            queue_pause(queue);
    }
}

void act(struct process *process, uint64_t jitter)
{
    if (process->doing == DO_BEGIN) {
        begin(process);
        return;
    }
    if (now_ns >= process->stop) {
        process->doing = DO_OVER;
        process->wake = UINT64_MAX;
        return;
    }
    if (process->doing == DO_SYNC) {
        if (process->synced > now_virtual + 1e-6) {
            process->wake = UINT64_MAX;
            return;
        }
        process->doing = DO_LAUNCH;
        process->wake = late(now_ns, jitter) + process->workload->pause;
        return;
    }
    if (process->doing == DO_LAUNCH)
        choose(process);
    struct stream_queue *queue = &process->queues[process->stream];
    process->estimate_ns = estimate_word(process->estimate);
    uint64_t at = queue_needs_time(queue, process->estimate_ns) ? now_ns : queue->now_ns;
    if (!queue_goes(queue, process->estimate_ns, at)) {
        uint64_t until = queue_ask(queue, process->estimate, at = now_ns);
        if (until != 0) {
            pause_others(process, queue);
            process->doing = DO_ASK;
            process->wake = late(until, jitter);
            return;
        }
        process->estimate_ns = estimate_ns(process->estimate);
    }
    launched(process, queue, at);
}
