/*
 * The limiter on a simulated clock: containers, their processes and a GPU that slices its time evenly between processes with work.
 *
 * In: words on the command line, in order:
 *   seconds=N warmup=N seed=N jitter=NS (how late threads wake, at most) bias=F (estimates begin F times too high)
 *   no-rows (no activity rows)
 *   c:CORES[:SOFT]                   a container
 *   l:SECOND:CORES                   its cores change
 *   p:WORKLOAD[:START[:STOP]]        a process of it, in seconds
 * Out: JSON: for each container its share of the GPU in percent between warmup and the end, by process too; the most GPU time above the limit in any
 * window; the longest time a launch waited without any launch or payment; shares in every tenth of a second.
 * One thread a process. Everything is the library's own code but the GPU, the clock and the sleeping.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interposer/cuda/compute/lane.h"

#define SECOND UINT64_C(1000000000)
enum { PROCESSES = 64, CONTAINERS = 16, STREAMS = 4, EVENTS = 8192, QUEUE = 1024, TENTHS = 1024, CHANGES = 8 };

/* ---- random, the same for the same seed ---- */

static uint64_t seed = 1;

static uint64_t random_below(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return below == 0 ? 0 : seed % below;
}

/* ---- the GPU ---- */

struct event {
    double target;      /* in virtual time */
    uint64_t reached;   /* 0: not yet */
    struct process *process;
};

struct stream {
    double tail;
};

/* What a process's thread does next. */
enum doing { DO_BEGIN, DO_LAUNCH, DO_ASK, DO_SYNC, DO_HOST, DO_OVER };

struct workload {
    const char *name;
    uint64_t cost, spread;      /* of a launch, GPU time: cost + up to spread */
    unsigned per_step;          /* launches before the host waits for them; 0: never waits */
    uint64_t host;              /* time of the thread for each launch */
    uint64_t pause;             /* after each step */
    unsigned streams, kinds;
    bool wide;
};

static const struct workload workloads[] = {
    {"small", 10000, 0, 0, 2500, 0, 1, 1, true},
    {"medium", 1000000, 0, 0, 4000, 0, 1, 1, true},
    {"gemm", 20000000, 0, 1, 5000, 0, 1, 1, true},
    {"step", 100000, 0, 300, 5000, 20000, 1, 6, true},
    {"graph", 20000000, 0, 0, 10000, 0, 1, 1, true},
    {"long", 2000000000, 0, 1, 10000, 0, 1, 1, true},
    {"longasync", 500000000, 0, 0, 10000, 0, 1, 1, true},
    {"eager", 10000, 0, 0, 30000, 0, 1, 20, true},
    {"tinysync", 10000, 0, 1, 5000, 0, 1, 1, true},
    {"varied", 50000, 950000, 0, 4000, 0, 1, 1, true},
    {"streams", 400000, 0, 0, 4000, 0, 4, 2, false},
    {"burst", 20000, 0, 25, 4000, 5000000, 1, 3, true},
    {"model", 40000, 200000, 120, 6000, 100000, 1, 40, true},
};

struct process {
    const struct workload *workload;
    struct container *container;
    uint64_t start, stop;
    struct limiter *limiter;
    struct timebase timebase;
    struct lane lanes[STREAMS];
    struct stream streams[STREAMS];
    double engine;              /* end of the last wide launch */
    double busy_until;          /* virtual */
    double used, used_at_warmup;
    double launch_ends[QUEUE];
    uint64_t launches;
    uint64_t wake, tick;
    enum doing doing;
    unsigned stream;
    struct estimate *estimate;
    uint64_t cost;
    uint64_t estimate_ns;
    double synced;
    uint64_t waiting_since;
};

struct change {
    uint64_t at;
    uint32_t cores;
};

struct container {
    uint32_t cores, soft;
    struct region *region;
    struct activity_row *row;
    unsigned processes, change_count, changed;
    struct change changes[CHANGES];
    double tenths[TENTHS];
    uint64_t moved;             /* last launch, or payment seen */
    uint64_t longest_stall;
};

static struct process processes[PROCESSES];
static struct container containers[CONTAINERS];
static unsigned process_count, container_count;
static struct event events[EVENTS];
static unsigned event_count;
static uint64_t now_ns = SECOND;
static double now_virtual;
static double bias = 1;
static bool rows = true;

static unsigned working(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < process_count; i++)
        count += processes[i].busy_until > now_virtual + 1e-6;
    return count;
}

static void pass(uint64_t until, double virtual_until)
{
    double rate = until > now_ns ? (virtual_until - now_virtual) / (double)(until - now_ns) : 0;
    for (unsigned i = 0; i < event_count; i++) {
        if (events[i].reached == 0 && events[i].target <= virtual_until + 1e-6)
            events[i].reached = rate > 0 && events[i].target > now_virtual ? now_ns + (uint64_t)((events[i].target - now_virtual) / rate) : now_ns;
    }
    for (unsigned i = 0; i < process_count; i++) {
        if (processes[i].busy_until > now_virtual + 1e-6) {
            double used = virtual_until - now_virtual;
            processes[i].used += used;
            processes[i].container->tenths[(now_ns - SECOND) / (SECOND / 10) % TENTHS] += used;
        }
    }
    now_ns = until;
    now_virtual = virtual_until;
}

/* When the next process runs out of work, or a target is passed; at most `until`. */
static uint64_t next_edge(uint64_t until, double target, double *virtual_at)
{
    unsigned count = working();
    double next = target;
    for (unsigned i = 0; i < process_count; i++) {
        double end = processes[i].busy_until;
        if (end > now_virtual + 1e-6 && end < next)
            next = end;
    }
    *virtual_at = now_virtual;
    if (count == 0)
        return until;
    uint64_t at = now_ns + (uint64_t)((next - now_virtual) * count + 0.999);
    if (at > until) {
        *virtual_at = now_virtual + (double)(until - now_ns) / count;
        return until;
    }
    *virtual_at = next;
    return at;
}

static double target_of_sync(void)
{
    double target = 1e30;
    for (unsigned i = 0; i < process_count; i++) {
        if (processes[i].doing == DO_SYNC && processes[i].synced > now_virtual && processes[i].synced < target)
            target = processes[i].synced;
    }
    return target;
}

static double enqueue(struct process *process, struct stream *stream, uint64_t cost, bool wide)
{
    double start = stream->tail > now_virtual ? stream->tail : now_virtual;
    if (wide && process->engine > start)
        start = process->engine;
    stream->tail = start + (double)cost;
    if (wide)
        process->engine = stream->tail;
    if (stream->tail > process->busy_until)
        process->busy_until = stream->tail;
    return stream->tail;
}

/* ---- the driver ---- */

static uint64_t sim_now(void)
{
    return now_ns;
}

static CUresult sim_create(CUevent *made, unsigned int flags)
{
    (void)flags;
    if (event_count == EVENTS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    events[event_count] = (struct event){.target = 1e30};
    *made = (CUevent)(uintptr_t)++event_count;
    return CUDA_SUCCESS;
}

static struct event *event_of(CUevent event)
{
    return &events[(uintptr_t)event - 1];
}

static CUresult sim_record(CUevent event, CUstream stream)
{
    struct stream *into = (struct stream *)(void *)stream;
    struct event *recorded = event_of(event);
    recorded->target = into->tail > now_virtual ? into->tail : now_virtual;
    recorded->reached = recorded->target <= now_virtual ? now_ns : 0;
    return CUDA_SUCCESS;
}

static CUresult sim_query(CUevent event)
{
    return event_of(event)->reached == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult sim_elapsed(float *milliseconds, CUevent start, CUevent end)
{
    *milliseconds = (float)(((double)event_of(end)->reached - (double)event_of(start)->reached) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult sim_push(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult sim_pop(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult sim_exchange(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

static void sim_wake(void)
{
    for (unsigned i = 0; i < process_count; i++) {
        if (processes[i].tick == UINT64_MAX && processes[i].limiter != NULL)
            processes[i].tick = now_ns + random_below(100000);
    }
}

static const struct measuring driver = {sim_create, sim_record, sim_query, sim_elapsed, sim_push, sim_pop, sim_exchange, sim_now, sim_wake};

/* ---- processes ---- */

static uint64_t late(uint64_t at, uint64_t jitter)
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
    limiter_init(process->limiter, &driver, calloc(1, sizeof(struct estimates)), budget);
    process->limiter->presence.row = rows ? container->row : NULL;
    process->limiter->presence.own = rows ? &container->row->slots[place] : NULL;
    limiter_set(process->limiter, container->cores, container->soft);
    timebase_init(&process->timebase, &driver, NULL);
    for (unsigned i = 0; i < STREAMS; i++)
        lane_init(&process->lanes[i], process->limiter, &process->timebase, (CUstream)(void *)&process->streams[i]);
    process->tick = now_ns;
    process->doing = DO_LAUNCH;
}

/* Neighbours are what neighbours.c would have found. */
static void find_neighbours(struct process *process)
{
    struct neighbours *neighbours = &process->limiter->neighbours;
    neighbours->count = 0;
    neighbours->readable = true;
    for (unsigned i = 0; i < container_count && rows; i++) {
        if (&containers[i] != process->container)
            neighbours->found[neighbours->count++].row = containers[i].row;
    }
}

static void choose(struct process *process)
{
    const struct workload *load = process->workload;
    struct launch_key key = launch_key(load, (uint32_t)(process->launches % load->kinds) + 1, 1, 1, 1, 1, 1);
    uint64_t kind_cost = load->cost * (2 * (process->launches % load->kinds) + 1) / load->kinds;
    process->stream = (unsigned)(process->launches % load->streams);
    process->cost = kind_cost + random_below(load->spread);
    process->estimate = estimates_find(process->limiter->estimates, &key);
    if (bias != 1 && estimate_ns(process->estimate) == 0)
        estimate_learn(process->estimate, (uint64_t)((double)process->cost * bias));
}

static void launched(struct process *process, struct lane *lane, uint64_t at)
{
    const struct workload *load = process->workload;
    double end = enqueue(process, &process->streams[process->stream], process->cost, load->wide);
    process->launch_ends[process->launches++ % QUEUE] = end;
    lane_took(lane, process->estimate, process->estimate_ns, at);
    process->container->moved = now_ns;
    process->wake = now_ns + load->host;
    process->doing = DO_LAUNCH;
    if (load->per_step != 0 && process->launches % load->per_step == 0) {
        process->doing = DO_SYNC;
        process->synced = end;
    } else if (process->launches > QUEUE && process->launch_ends[process->launches % QUEUE] > now_virtual) {
        process->doing = DO_SYNC;
        process->synced = process->launch_ends[process->launches % QUEUE];
    }
}

static void act(struct process *process, uint64_t jitter)
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
    struct lane *lane = &process->lanes[process->stream];
    process->estimate_ns = estimate_ns(process->estimate);
    uint64_t at = lane_needs_time(lane, process->estimate_ns) ? now_ns : lane->now_ns;
    if (!lane_goes(lane, process->estimate_ns, at)) {
        uint64_t until = lane_ask(lane, process->estimate, at = now_ns);
        if (until != 0) {
            for (unsigned i = 0; i < STREAMS; i++) {
                if (&process->lanes[i] != lane && process->lanes[i].open != NULL)
                    lane_close(&process->lanes[i], false);
            }
            process->doing = DO_ASK;
            process->wake = late(until, jitter);
            return;
        }
    }
    launched(process, lane, at);
}

/* ---- the run ---- */

static uint64_t parse_seconds(const char *text)
{
    return (uint64_t)(strtod(text, NULL) * 1e9);
}

static void parse_process(const char *word, uint64_t end)
{
    char name[32] = "";
    double start = 0, stop = 1e9;
    sscanf(word, "p:%31[^:]:%lf:%lf", name, &start, &stop);
    struct process *process = &processes[process_count++];
    for (unsigned i = 0; i < sizeof workloads / sizeof workloads[0]; i++) {
        if (strcmp(workloads[i].name, name) == 0)
            process->workload = &workloads[i];
    }
    if (process->workload == NULL)
        exit(2);
    process->container = &containers[container_count - 1];
    process->start = process->wake = SECOND + (uint64_t)(start * 1e9) + random_below(1000000);
    process->stop = stop > 1e8 ? end + SECOND : SECOND + (uint64_t)(stop * 1e9);
    process->tick = UINT64_MAX;
}

static void add_container(const char *word)
{
    struct container *container = &containers[container_count++];
    sscanf(word, "c:%u:%u", &container->cores, &container->soft);
    container->region = calloc(1, sizeof *container->region);
    container->row = calloc(1, sizeof *container->row);
    atomic_store(&container->row->cores, container->cores);
}

static void apply_changes(void)
{
    for (unsigned i = 0; i < container_count; i++) {
        struct container *container = &containers[i];
        if (container->changed == container->change_count || container->changes[container->changed].at > now_ns)
            continue;
        container->cores = container->changes[container->changed++].cores;
        for (unsigned p = 0; p < process_count; p++) {
            if (processes[p].container == container && processes[p].limiter != NULL)
                limiter_set(processes[p].limiter, container->cores, container->soft);
        }
    }
}

static void turn(uint64_t jitter)
{
    apply_changes();
    for (unsigned i = 0; i < process_count; i++) {
        struct process *process = &processes[i];
        if (process->tick <= now_ns) {
            find_neighbours(process);
            uint64_t next = limiter_tick(process->limiter);
            process->tick = next == UINT64_MAX ? next : late(next, jitter);
        }
        if (process->doing == DO_SYNC && process->wake == UINT64_MAX && process->synced <= now_virtual + 1e-6)
            process->wake = now_ns;
        if (process->wake <= now_ns)
            act(process, jitter);
        if (process->limiter != NULL) {
            bool held = process->doing == DO_ASK;
            process->waiting_since = !held ? 0 : process->waiting_since == 0 ? now_ns : process->waiting_since;
            uint64_t since = process->container->moved > process->waiting_since ? process->container->moved : process->waiting_since;
            if (held && now_ns - since > process->container->longest_stall)
                process->container->longest_stall = now_ns - since;
        }
    }
}

static uint64_t next_time(uint64_t end)
{
    uint64_t next = end;
    for (unsigned i = 0; i < process_count; i++) {
        next = processes[i].wake < next ? processes[i].wake : next;
        next = processes[i].tick < next ? processes[i].tick : next;
    }
    return next <= now_ns ? now_ns + 1 : next;
}

static void run(uint64_t end, uint64_t warm, uint64_t jitter)
{
    bool warmed = false;
    while (now_ns < end) {
        double virtual_at;
        if (!warmed && now_ns >= warm) {
            warmed = true;
            for (unsigned i = 0; i < process_count; i++)
                processes[i].used_at_warmup = processes[i].used;
        }
        turn(jitter);
        uint64_t limit = next_time(end), tenth = (now_ns / (SECOND / 10) + 1) * (SECOND / 10);
        uint64_t until = next_edge(limit < tenth ? limit : tenth, target_of_sync(), &virtual_at);
        pass(until, virtual_at);
    }
}

static void print(uint64_t warm, uint64_t end)
{
    printf("{\"containers\": [");
    for (unsigned c = 0; c < container_count; c++) {
        struct container *container = &containers[c];
        double sum = 0;
        printf("%s{\"processes\": [", c ? ", " : "");
        for (unsigned i = 0, n = 0; i < process_count; i++) {
            if (processes[i].container != container)
                continue;
            double used = processes[i].used - processes[i].used_at_warmup;
            sum += used;
            printf("%s%.3f", n++ ? ", " : "", 100 * used / (double)(end - warm));
        }
        const struct region_device *device = &container->region->devices[0];
        printf("], \"share\": %.3f, \"charged\": %.3f, \"throttled_ns\": %" PRIu64 ", \"launches\": %" PRIu64
               ", \"longest_stall_ns\": %" PRIu64 ", \"balance_ns\": %" PRId64 ", \"tenths\": [",
               100 * sum / (double)(end - warm), (double)atomic_load(&device->charged_ns) / 1e9, atomic_load(&device->throttled_ns),
               atomic_load(&device->launches), container->longest_stall, atomic_load(&device->balance_ns));
        for (uint64_t i = 0; i < (end - SECOND) / (SECOND / 10) && i < TENTHS; i++)
            printf("%s%.2f", i ? ", " : "", container->tenths[i] / 1e6);
        printf("]}");
    }
    printf("]}\n");
}

int main(int count, char **words)
{
    uint64_t end = 11 * SECOND, warm = SECOND, jitter = 60000;
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *value = strchr(word, '=');
        if (strncmp(word, "seconds=", 8) == 0)
            end = SECOND + parse_seconds(value + 1);
        else if (strncmp(word, "warmup=", 7) == 0)
            warm = SECOND + parse_seconds(value + 1);
        else if (strncmp(word, "seed=", 5) == 0)
            seed = strtoull(value + 1, NULL, 10) * 2654435761u + 1;
        else if (strncmp(word, "jitter=", 7) == 0)
            jitter = strtoull(value + 1, NULL, 10);
        else if (strncmp(word, "bias=", 5) == 0)
            bias = strtod(value + 1, NULL);
        else if (strcmp(word, "no-rows") == 0)
            rows = false;
        else if (word[0] == 'c' && container_count < CONTAINERS)
            add_container(word);
        else if (word[0] == 'p' && process_count < PROCESSES && container_count > 0)
            parse_process(word, end);
        else if (word[0] == 'l' && container_count > 0) {
            double at = 0;
            struct container *container = &containers[container_count - 1];
            struct change *change = &container->changes[container->change_count++ % CHANGES];
            sscanf(word, "l:%lf:%u", &at, &change->cores);
            change->at = SECOND + (uint64_t)(at * 1e9);
        } else
            return 2;
    }
    run(end, warm, jitter);
    print(warm, end);
    return 0;
}
