/*
 * The GPUs, one for each rank, their streams and the exchanges between them; and the driver, as far as measuring needs it.
 *
 * In: operations in streams, the time. Out: when they are over, marks. Not here: who launches what.
 * Streams of a GPU do not slow each other: an exchange waits on few SMs.
 */
#include "ranks.h"

struct exchange {
    unsigned begun;
    uint64_t over_ns;                   /* 0: not all have begun it */
};

static struct exchange *exchanges;
static uint64_t *events[RANKS];         /* when they were reached; 0: not yet */

/* ---- random, the same for the same seed ---- */

uint64_t seed = 1;

uint64_t random_below(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return below == 0 ? 0 : seed % below;
}

/* ---- streams ---- */

void gpus_prepare(void)
{
    size_t count = (size_t)job.steps * (job.exchanges + 1);
    exchanges = calloc(count, sizeof *exchanges);
    for (unsigned i = 0; i < job.ranks; i++)
        events[i] = calloc(2 * count, sizeof *events[i]);
}

void put(struct rank *rank, unsigned number, struct operation operation)
{
    struct stream *stream = &rank->streams[number];
    if (stream->end - stream->first == OPERATIONS)
        exit(3);
    stream->operations[stream->end++ % OPERATIONS] = operation;
    stream->launched += operation.last;
}

static void begin(struct stream *stream, const struct operation *operation)
{
    stream->begun = true;
    stream->over_ns = operation->kind == WORK ? now_ns + operation->ns : 0;
    if (operation->kind != EXCHANGE)
        return;
    struct exchange *exchange = &exchanges[operation->number];
    if (++exchange->begun == job.ranks)
        exchange->over_ns = now_ns + operation->ns;
}

static bool is_over(const struct rank *rank, const struct stream *stream, const struct operation *operation)
{
    if (operation->kind == AWAIT)
        return events[rank->number][operation->number] != 0;
    if (operation->kind == EXCHANGE)
        return exchanges[operation->number].over_ns != 0 && exchanges[operation->number].over_ns <= now_ns;
    return stream->over_ns <= now_ns;
}

static void end(struct rank *rank, struct stream *stream, const struct operation *operation)
{
    if (operation->kind == RECORD)
        events[rank->number][operation->number] = now_ns;
    struct mark_event *mark = &rank->marks[operation->number % MARKS];
    if (operation->kind == MARK && mark->recorded == operation->recorded)
        mark->reached_ns = now_ns;
    stream->finished += operation->last;
    stream->begun = false;
    stream->first++;
}

static bool advance(struct rank *rank, struct stream *stream)
{
    bool moved = false;
    while (stream->first != stream->end) {
        const struct operation *operation = &stream->operations[stream->first % OPERATIONS];
        if (!stream->begun) {
            begin(stream, operation);
            moved = true;
        }
        if (!is_over(rank, stream, operation))
            break;
        end(rank, stream, operation);
    }
    return moved;
}

void gpus_advance(void)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned i = 0; i < job.ranks * STREAMS; i++)
            moved = advance(&ranks[i / STREAMS], &ranks[i / STREAMS].streams[i % STREAMS]) || moved;
    }
}

static uint64_t over_at(const struct stream *stream)
{
    const struct operation *operation = &stream->operations[stream->first % OPERATIONS];
    if (stream->first == stream->end || operation->kind == AWAIT)
        return UINT64_MAX;
    if (operation->kind == EXCHANGE)
        return exchanges[operation->number].over_ns == 0 ? UINT64_MAX : exchanges[operation->number].over_ns;
    return stream->over_ns;
}

uint64_t gpus_next(void)
{
    uint64_t next = UINT64_MAX;
    for (unsigned i = 0; i < job.ranks * STREAMS; i++) {
        uint64_t over = over_at(&ranks[i / STREAMS].streams[i % STREAMS]);
        next = over < next ? over : next;
    }
    return next;
}

uint64_t exchange_over(unsigned number)
{
    return exchanges[number].over_ns;
}

/* ---- the driver: a stream is a pointer to ours, an event its rank's and its number ---- */

static struct rank *current;

static uint64_t sim_now(void)
{
    return now_ns;
}

static struct rank *owner_of(const struct stream *stream)
{
    for (unsigned i = 0; i < job.ranks; i++) {
        if (stream >= ranks[i].streams && stream < ranks[i].streams + STREAMS)
            return &ranks[i];
    }
    exit(3);
}

static struct mark_event *mark_of(CUevent event)
{
    uintptr_t number = (uintptr_t)event - 1;
    return &ranks[number / MARKS].marks[number % MARKS];
}

/* Events are made by the rank whose turn it is: main.c says whose. */
static CUresult sim_create(CUevent *made, unsigned int flags)
{
    (void)flags;
    if (current == NULL || current->mark_count == MARKS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (CUevent)((uintptr_t)current->number * MARKS + ++current->mark_count);
    return CUDA_SUCCESS;
}

static CUresult sim_record(CUevent event, CUstream stream)
{
    struct stream *into = (struct stream *)(void *)stream;
    struct rank *rank = owner_of(into);
    struct mark_event *mark = mark_of(event);
    now_ns += random_below(job.record);
    mark->recorded++;
    mark->reached_ns = 0;
    put(rank, (unsigned)(into - rank->streams), (struct operation){.kind = MARK, .number = (unsigned)(mark - rank->marks), .recorded = mark->recorded});
    gpus_advance();
    return CUDA_SUCCESS;
}

static CUresult sim_query(CUevent event)
{
    return mark_of(event)->reached_ns == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult sim_elapsed(float *milliseconds, CUevent start, CUevent end)
{
    *milliseconds = (float)(((double)mark_of(end)->reached_ns - (double)mark_of(start)->reached_ns) / 1e6);
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
    for (unsigned i = 0; i < job.ranks; i++) {
        if (ranks[i].tick == UINT64_MAX)
            ranks[i].tick = now_ns + random_below(100000);
    }
}

void turn_of(struct rank *rank)
{
    current = rank;
}

const struct measuring driver = {sim_create, sim_record, sim_query, sim_elapsed, sim_push, sim_pop, sim_exchange, sim_now, sim_wake};
