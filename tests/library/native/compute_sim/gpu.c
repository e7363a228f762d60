/*
 * The GPU: it slices its time evenly between processes with work; and the driver, as far as measuring needs it.
 *
 * In: launches, the time. Out: when they are over, events. Not here: who launches what.
 */
#include "sim.h"

#define QUERY_NS UINT64_C(2000)

/* ---- random, the same for the same seed ---- */

uint64_t seed = 1;

uint64_t random_below(uint64_t below)
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

static struct event events[EVENTS];
static unsigned event_count;

static unsigned working(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < process_count; i++)
        count += processes[i].busy_until > now_virtual + 1e-6;
    return count;
}

void pass(uint64_t until, double virtual_until)
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
uint64_t next_edge(uint64_t until, double target, double *virtual_at)
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

/* A wait begins when what is before it in its stream is over. */
static double target_of_waits(const struct process *process)
{
    double target = 1e30;
    for (unsigned i = 0; i < STREAMS; i++) {
        const struct stream *stream = &process->streams[i];
        if (stream->count > 0 && stream->waits_until == 0 && stream->tail > now_virtual && stream->tail < target)
            target = stream->tail;
    }
    return target;
}

double target_of_sync(void)
{
    double target = 1e30;
    for (unsigned i = 0; i < process_count; i++) {
        double waits = target_of_waits(&processes[i]);
        target = waits < target ? waits : target;
        if (processes[i].doing == DO_SYNC && processes[i].synced > now_virtual && processes[i].synced < target)
            target = processes[i].synced;
    }
    return target;
}

/* ---- streams ---- */

static double place_launch(struct process *process, struct stream *stream, uint64_t cost, bool wide)
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

static void place_record(const struct stream *stream, struct event *event)
{
    event->target = stream->tail > now_virtual ? stream->tail : now_virtual;
    event->reached = event->target <= now_virtual ? now_ns : 0;
}

static bool wait_is_over(struct stream *stream, uint64_t ns)
{
    if (stream->tail > now_virtual + 1e-6)
        return false;
    if (stream->waits_until == 0)
        stream->waits_until = now_ns + ns;
    if (stream->waits_until > now_ns)
        return false;
    stream->waits_until = 0;
    return true;
}

static bool place(struct process *process, struct stream *stream, const struct item *item)
{
    if (item->kind == ITEM_WAIT)
        return wait_is_over(stream, item->ns);
    if (item->kind == ITEM_RECORD) {
        place_record(stream, &events[item->number]);
        return true;
    }
    process->launch_ends[item->number % QUEUE] = place_launch(process, stream, item->ns, item->wide);
    if (item->number == process->synced_launch)
        process->synced = process->launch_ends[item->number % QUEUE];
    return true;
}

static void push(struct stream *stream, struct item item)
{
    if (stream->count == ITEMS)
        exit(3);
    stream->items[(stream->first + stream->count++) % ITEMS] = item;
}

void enqueue(struct process *process, struct stream *stream, struct item item)
{
    if (item.kind == ITEM_LAUNCH)
        process->launch_ends[item.number % QUEUE] = 1e30;
    if (stream->count > 0 || !place(process, stream, &item))
        push(stream, item);
}

void place_items(void)
{
    for (unsigned i = 0; i < process_count; i++) {
        for (unsigned k = 0; k < STREAMS; k++) {
            struct stream *stream = &processes[i].streams[k];
            while (stream->count > 0 && place(&processes[i], stream, &stream->items[stream->first])) {
                stream->first = (stream->first + 1) % ITEMS;
                stream->count--;
            }
        }
    }
}

uint64_t next_wait(uint64_t until)
{
    for (unsigned i = 0; i < process_count; i++) {
        for (unsigned k = 0; k < STREAMS; k++) {
            uint64_t over = processes[i].streams[k].waits_until;
            until = over != 0 && over < until ? over : until;
        }
    }
    return until;
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

static const struct process *owner_of(const struct stream *stream)
{
    unsigned i = 0;
    while (i + 1 < process_count && (stream < processes[i].streams || stream >= processes[i].streams + STREAMS))
        i++;
    return &processes[i];
}

static CUresult sim_record(CUevent event, CUstream stream)
{
    struct stream *into = (struct stream *)(void *)stream;
    struct event *recorded = event_of(event);
    if (owner_of(into)->container->refuses)
        return CUDA_ERROR_NOT_SUPPORTED;
    *recorded = (struct event){.target = 1e30};
    if (into->count == 0)
        place_record(into, recorded);
    else
        push(into, (struct item){.kind = ITEM_RECORD, .number = (uint64_t)(recorded - events)});
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

/* For the thread that watches a stream. */
static void sim_sleep(uint64_t ns)
{
    for (uint64_t until = now_ns + ns; now_ns < until;) {
        double virtual_at;
        uint64_t at = next_edge(next_wait(until), target_of_sync(), &virtual_at);
        pass(at, virtual_at);
        place_items();
    }
}

static CUresult sim_query_stream(CUstream stream)
{
    const struct stream *asked = (const struct stream *)(const void *)stream;
    sim_sleep(QUERY_NS);
    return asked->count > 0 || asked->tail > now_virtual + 1e-6 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

const struct measuring driver = {sim_create, sim_record, sim_query, sim_elapsed, sim_push, sim_pop, sim_exchange, sim_now, sim_wake, sim_query_stream,
                                 sim_sleep};
