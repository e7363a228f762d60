/*
 * A job of several ranks on a simulated clock: each rank has a GPU of its own, and a limiter; in every step they exchange something, in a kernel that waits
 * until the other ranks' kernels have begun.
 *
 * In: words on the command line:
 *   r:CORES                          a rank with so many cores of its GPU
 *   steps=N kernels=N work=NS        a step: so many kernels of so much GPU time
 *   exchanges=N exchange=NS          exchanges in each step, spread over it, and how long each moves data
 *   by=small|cooperative|graph       what waits: a small kernel, a cooperative one, or a graph with the kernels and the exchange of a step in it
 *   async                            the thread does not wait at the end of a step, but where 1,024 launches are in a stream
 *   apart                            the exchanges have a stream of their own, ordered by events
 *   stall=STEP:NS                    the thread of the first rank sleeps so long in that step
 *   host=NS jitter=NS seed=N         time for each call; how late threads wake, at most
 *   record=NS                        time for a call that records an event, at most, before the GPU hears of it
 *   most=SECONDS                     the end, if the steps are not over by then
 * Out: JSON: the steps' lengths, by the end of their last exchange; of each rank the longest time that a launch was held back, and what it was charged.
 * Everything is the library's own code but the GPUs, the clock and the sleeping. Ranks have no neighbours on their GPUs.
 */
#include "ranks.h"

struct job job = {.steps = 60, .kernels = 20, .work = 250000, .exchanges = 1, .exchange = 10000, .host = 5000, .jitter = 60000, .stalled_step = UINT32_MAX,
                  .synchronous = true};
struct rank ranks[RANKS];
uint64_t now_ns = SECOND;


static void add(enum action_kind kind, unsigned stream, unsigned number)
{
    if (job.action_count == ACTIONS)
        exit(2);
    job.actions[job.action_count++] = (struct action){kind, stream, number};
}

/* Each exchange follows the kernels before it; apart, the next step follows all of them. */
static void add_exchange(unsigned number)
{
    if (!job.apart) {
        add(LAUNCH_EXCHANGE, COMPUTE, number);
        return;
    }
    add(PUT_RECORD, COMPUTE, 2 * number);
    add(PUT_AWAIT, EXCHANGING, 2 * number);
    add(LAUNCH_EXCHANGE, EXCHANGING, number);
}

static void plan(void)
{
    add(REST, COMPUTE, 0);
    if (job.by == BY_GRAPH)
        add(LAUNCH_GRAPH, COMPUTE, 0);
    for (unsigned i = 0; i < job.exchanges && job.by != BY_GRAPH; i++) {
        for (unsigned k = job.kernels * i / job.exchanges; k < job.kernels * (i + 1) / job.exchanges; k++)
            add(LAUNCH_WORK, COMPUTE, k);
        add_exchange(i);
    }
    if (job.apart) {
        add(PUT_RECORD, EXCHANGING, 2 * job.exchanges);
        add(PUT_AWAIT, COMPUTE, 2 * job.exchanges);
    }
    if (job.synchronous)
        add(SYNCHRONIZE, COMPUTE, 0);
}

static void turn(struct rank *rank)
{
    turn_of(rank);
    if (rank->tick <= now_ns) {
        rank->limiter->neighbours.count = 0;
        rank->limiter->neighbours.readable = true;
        uint64_t next = limiter_tick(rank->limiter);
        rank->tick = next == UINT64_MAX ? next : next + random_below(job.jitter);
    }
    if (rank->doing == DO_SYNC && rank_can_go_on(rank))
        rank->wake = now_ns;
    if (rank->wake <= now_ns)
        rank_act(rank);
}

static uint64_t next_time(uint64_t most)
{
    uint64_t next = gpus_next();
    for (unsigned i = 0; i < job.ranks; i++) {
        next = ranks[i].wake < next ? ranks[i].wake : next;
        next = ranks[i].tick < next ? ranks[i].tick : next;
        if (ranks[i].doing == DO_SYNC && rank_can_go_on(&ranks[i]))
            next = now_ns;
    }
    return next <= now_ns ? now_ns + 1 : next < most ? next : most;
}

static bool is_over(void)
{
    for (unsigned i = 0; i < job.ranks; i++) {
        if (ranks[i].doing != DO_OVER)
            return false;
    }
    return exchange_over(job.steps * job.exchanges - 1) != 0;
}

static void print(void)
{
    uint64_t before = SECOND;
    printf("{\"steps\": [");
    for (unsigned i = 0; i < job.steps && exchange_over((i + 1) * job.exchanges - 1) != 0; i++) {
        uint64_t over = exchange_over((i + 1) * job.exchanges - 1);
        printf("%s%" PRIu64, i ? ", " : "", over - before);
        before = over;
    }
    printf("], \"ranks\": [");
    for (unsigned i = 0; i < job.ranks; i++) {
        const struct region_device *device = &ranks[i].limiter->budget.region->devices[0];
        printf("%s{\"longest_pause_ns\": %" PRIu64 ", \"charged_ns\": %" PRIu64 ", \"balance_ns\": %" PRId64 "}", i ? ", " : "", ranks[i].longest_pause,
               atomic_load(&device->charged_ns), atomic_load(&device->balance_ns));
    }
    printf("]}\n");
}

static bool parse_number(const char *word, const char *name, uint64_t *into)
{
    size_t length = strlen(name);
    if (strncmp(word, name, length) != 0 || word[length] != '=')
        return false;
    *into = strtoull(word + length + 1, NULL, 10);
    return true;
}

static bool parse_count(const char *word, const char *name, unsigned *into)
{
    uint64_t value;
    if (!parse_number(word, name, &value))
        return false;
    *into = (unsigned)value;
    return true;
}

static bool parse(const char *word, uint64_t *most)
{
    if (parse_count(word, "steps", &job.steps) || parse_count(word, "kernels", &job.kernels) || parse_count(word, "exchanges", &job.exchanges) ||
        parse_number(word, "work", &job.work) || parse_number(word, "exchange", &job.exchange) || parse_number(word, "host", &job.host) ||
        parse_number(word, "jitter", &job.jitter) || parse_number(word, "record", &job.record) || parse_number(word, "seed", &seed) || parse_number(word, "most", most) ||
        sscanf(word, "stall=%u:%" SCNu64, &job.stalled_step, &job.stall) == 2)
        return true;
    if (strcmp(word, "async") == 0)
        job.synchronous = false;
    else if (strcmp(word, "apart") == 0)
        job.apart = true;
    else if (strncmp(word, "by=", 3) == 0)
        job.by = word[3] == 's' ? BY_SMALL : word[3] == 'c' ? BY_COOPERATIVE : BY_GRAPH;
    else if (word[0] == 'r' && job.ranks < RANKS)
        ranks[job.ranks++].cores = (uint32_t)strtoul(word + 2, NULL, 10);
    else
        return false;
    return true;
}

int main(int count, char **words)
{
    uint64_t most = 1000;
    for (int i = 1; i < count; i++) {
        if (!parse(words[i], &most))
            return 2;
    }
    seed = seed * 2654435761u + 1;
    plan();
    gpus_prepare();
    for (unsigned i = 0; i < job.ranks; i++) {
        ranks[i].number = i;
        rank_begin(&ranks[i]);
    }
    while (!is_over() && now_ns < (most + 1) * SECOND) {
        gpus_advance();
        for (unsigned i = 0; i < job.ranks; i++)
            turn(&ranks[i]);
        gpus_advance();
        now_ns = next_time((most + 1) * SECOND);
    }
    print();
    return 0;
}
