/*
 * A rank: one thread that does the job's actions step by step, through the library's own queues.
 *
 * In: the time. Out: operations in its GPU's streams. Not here: the GPU, the order in which things happen.
 */
#include "ranks.h"

#include "interposer/cuda/compute/foreign_work.h"
#include "interposer/cuda/compute/guesses.h"

static uint64_t late(uint64_t at)
{
    return at + job.jitter / 4 + random_below(job.jitter);
}

void rank_begin(struct rank *rank)
{
    struct region *region = calloc(1, sizeof *region);
    atomic_store(&region->slots[0].pid, 1);
    atomic_store(&region->slot_high, 1);
    rank->limiter = calloc(1, sizeof *rank->limiter);
    struct estimates *estimates = calloc(1, sizeof *estimates);
    estimates->few_blocks = FEW_BLOCKS;
    limiter_init(rank->limiter, &driver, estimates, (struct budget){region, &region->slots[0].use[0], 0, 0});
    limiter_set(rank->limiter, rank->cores, 0);
    timebase_init(&rank->timebase, &driver, NULL);
    for (unsigned i = 0; i < STREAMS; i++)
        queue_init(&rank->queues[i], rank->limiter, &rank->timebase, (CUstream)(void *)&rank->streams[i]);
    rank->wake = rank->tick = now_ns + random_below(1000000);
}

static struct launch_key key_of(const struct action *action)
{
    switch (action->kind) {
    case LAUNCH_WORK:
        return launch_key(&job.work, 1000, action->number % 4 + 1, 1, 256, 1, 1);
    case LAUNCH_GRAPH:
        return launch_key(&job.action_count, 0, 0, 0, 0, 0, 0);
    default:
        break;
    }
    struct launch_key key = launch_key(&job.exchange, job.by == BY_SMALL ? FEW_BLOCKS : 1000, 1, 1, 512, 1, 1);
    key.dimensions[2] |= job.by == BY_COOPERATIVE ? LAUNCH_TOGETHER : 0;
    return key;
}

static void put_work(struct rank *rank, const struct action *action, uint64_t ns, bool last)
{
    put(rank, action->stream, (struct operation){.kind = WORK, .ns = ns, .last = last});
}

static void put_exchange(struct rank *rank, const struct action *action)
{
    put(rank, action->stream,
        (struct operation){.kind = EXCHANGE, .ns = job.exchange, .number = rank->step * job.exchanges + action->number, .last = true});
}

static void launched(struct rank *rank, const struct action *action)
{
    if (action->kind == LAUNCH_GRAPH)
        put_work(rank, action, job.work * job.kernels, false);
    if (action->kind == LAUNCH_WORK)
        put_work(rank, action, job.work, true);
    else
        put_exchange(rank, action);
}

static void next(struct rank *rank)
{
    rank->doing = DO_ACT;
    if (++rank->position < job.action_count)
        return;
    rank->position = 0;
    if (++rank->step == job.steps) {
        rank->doing = DO_OVER;
        rank->wake = UINT64_MAX;
    }
}

/* The other queues' open batches are closed or paused while the thread sleeps, as thread.c does. */
static void sleep_until(struct rank *rank, const struct stream_queue *asleep, uint64_t until)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream_queue *queue = &rank->queues[i];
        if (queue == asleep || queue->open == NULL)
            continue;
        if (queue->last == NULL || mark_is_reached(queue->last))
            queue_close(queue, false);
        else
            queue_pause(queue);
    }
    rank->doing = DO_ASK;
    rank->wake = late(until);
}

static void launch(struct rank *rank, const struct action *action)
{
    struct stream_queue *queue = &rank->queues[action->stream];
    if (rank->doing == DO_ACT) {
        struct launch_key key = key_of(action);
        rank->estimate = guesses_find(rank->limiter->estimates, &key);
        rank->asked_ns = now_ns;
    }
    rank->estimate_ns = estimate_word(rank->estimate);
    uint64_t at = queue_needs_time(queue, rank->estimate_ns) ? now_ns : queue->now_ns;
    if (!queue_goes(queue, rank->estimate_ns, at)) {
        uint64_t until = queue_ask(queue, rank->estimate, at = now_ns);
        if (until != 0) {
            sleep_until(rank, queue, until);
            return;
        }
        rank->estimate_ns = estimate_ns(rank->estimate);
    }
    if (now_ns - rank->asked_ns > rank->longest_pause)
        rank->longest_pause = now_ns - rank->asked_ns;
    launched(rank, action);
    gpus_advance();
    queue_took(queue, rank->estimate, rank->estimate_ns, at);
    next(rank);
    if (rank->doing == DO_ACT)
        rank->wake = now_ns + job.host;
}

/* Whether the thread may go on: the driver's queue has room, or what it synchronises with is over. */
bool rank_can_go_on(const struct rank *rank)
{
    const struct stream *stream = &rank->streams[job.actions[rank->position].stream];
    if (job.actions[rank->position].kind == SYNCHRONIZE)
        return stream->first == stream->end;
    return stream->launched - stream->finished < AHEAD;
}

static void rest(struct rank *rank)
{
    bool stalled = rank->number == 0 && rank->step == job.stalled_step;
    rank->wake = late(now_ns) + (stalled ? job.stall : 0);
    next(rank);
}

/* As the hook of cuStreamWaitEvent does. */
static void part_batches(struct stream_queue *queue)
{
    queue_interrupt(queue);
    foreign_work_put(queue->stream);
}

void rank_act(struct rank *rank)
{
    const struct action *action = &job.actions[rank->position];
    if (!rank_can_go_on(rank)) {
        rank->doing = DO_SYNC;
        rank->wake = UINT64_MAX;
        return;
    }
    if (rank->doing == DO_SYNC)
        rank->doing = DO_ACT;
    if (action->kind == REST) {
        rest(rank);
    } else if (action->kind == SYNCHRONIZE) {
        next(rank);
        if (rank->doing != DO_OVER)
            rank->wake = late(now_ns);
    } else if (action->kind == PUT_RECORD || action->kind == PUT_AWAIT) {
        unsigned number = rank->step * 2 * (job.exchanges + 1) + action->number;
        if (action->kind == PUT_AWAIT)
            part_batches(&rank->queues[action->stream]);
        put(rank, action->stream, (struct operation){.kind = action->kind == PUT_RECORD ? RECORD : AWAIT, .number = number});
        gpus_advance();
        next(rank);
        rank->wake = now_ns + job.host;
    } else {
        launch(rank, action);
    }
    if (rank->doing == DO_OVER)
        rank->wake = UINT64_MAX;
}
