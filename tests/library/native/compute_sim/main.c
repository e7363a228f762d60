/*
 * The limiter on a simulated clock: containers, their processes and a GPU that slices its time evenly between processes with work.
 *
 * In: words on the command line, in order:
 *   seconds=N warmup=N seed=N jitter=NS (how late threads wake, at most) bias=F (estimates begin F times too high)
 *   no-rows (no activity rows)
 *   c:CORES[:SOFT]                   a container
 *   unreadable                       its row cannot be read by others
 *   silent[:CORES]                   its row says to others that it is idle, and the agent that it uses so many cores
 *   overwrites                       it writes the largest number into its own balance, again and again
 *   refuses                          the driver records no event in its streams; while its thread watches one, all others are late
 *   l:SECOND:CORES                   its cores change
 *   p:WORKLOAD[:START[:STOP]]        a process of it, in seconds
 *   h:LIE[:CORES[:SOFT]]             a container that lies (hostile.c) and has so many cores, else none
 *   untold                           neighbours' limits are what their rows say, there is no agent that tells them
 * Out: JSON: for each container its share of the GPU in percent between warmup and the end, by process too; the most GPU time above the limit in any
 * window; the longest time a launch waited without any launch or payment, and each process's longest wait and launches; shares in every tenth of a second.
 * One thread a process. Everything is the library's own code but the GPU, the clock and the sleeping.
 */
#include "sim.h"

struct process processes[PROCESSES];
struct container containers[CONTAINERS];
unsigned process_count, container_count;
uint64_t now_ns = SECOND;
double now_virtual;
double bias = 1;
bool rows = true, told = true;

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
    process->workload = workload_named(name);
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

static void add_liar(const char *word)
{
    struct container *container = &containers[container_count];
    add_container("c:0");
    sscanf(word, "h:%15[^:]:%u:%u", container->lies, &container->cores, &container->soft);
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
    place_items();
    for (unsigned i = 0; i < container_count; i++) {
        if (containers[i].lies[0] != '\0' && containers[i].lies_again <= now_ns)
            lie(&containers[i]);
        if (containers[i].overwrites)
            atomic_store(&containers[i].region->devices[0].balance_ns, INT64_MAX);
    }
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
            if (held && now_ns - process->waiting_since > process->longest_wait)
                process->longest_wait = now_ns - process->waiting_since;
            if (held && now_ns - since > process->container->longest_stall)
                process->container->longest_stall = now_ns - since;
        }
    }
}

static uint64_t next_time(uint64_t end)
{
    uint64_t next = next_wait(end);
    for (unsigned i = 0; i < container_count; i++) {
        if (containers[i].lies[0] != '\0')
            next = containers[i].lies_again < next ? containers[i].lies_again : next;
    }
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
        printf("], \"waits_ns\": [");
        for (unsigned i = 0, n = 0; i < process_count; i++) {
            if (processes[i].container == container)
                printf("%s%" PRIu64, n++ ? ", " : "", processes[i].longest_wait);
        }
        printf("], \"launched\": [");
        for (unsigned i = 0, n = 0; i < process_count; i++) {
            if (processes[i].container == container)
                printf("%s%" PRIu64, n++ ? ", " : "", processes[i].launches);
        }
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
        else if (strcmp(word, "untold") == 0)
            told = false;
        else if (word[0] == 'c' && container_count < CONTAINERS)
            add_container(word);
        else if (word[0] == 'h' && container_count < CONTAINERS)
            add_liar(word);
        else if (word[0] == 'p' && process_count < PROCESSES && container_count > 0)
            parse_process(word, end);
        else if (word[0] == 'u' && container_count > 0)
            containers[container_count - 1].unreadable = true;
        else if (word[0] == 'o' && container_count > 0)
            containers[container_count - 1].overwrites = true;
        else if (word[0] == 'r' && container_count > 0)
            containers[container_count - 1].refuses = true;
        else if (word[0] == 's' && container_count > 0) {
            containers[container_count - 1].silent = true;
            sscanf(word, "silent:%u", &containers[container_count - 1].assumed);
        } else if (word[0] == 'l' && container_count > 0) {
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
