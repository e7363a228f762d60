/*
 * Readers and writers of the shared state, to be run against each other and killed.
 *
 *   hammer write MS   changes GPU 0 over and over: so many processes, all with the same number in them
 *   hammer read MS    looks at GPU 0 over and over; a status that mixes two changes ends it with 1
 *   hammer hold       takes the writers' lock, spoils the copy that nobody reads, says "holding" and sleeps
 *   hammer fork       takes the lock in a child and then in its parent, which must wait until the child is dead
 *   hammer threads MS two writers and two readers as threads of one process
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/change.h"
#include "shared/lock.h"

static struct machine machine;
static uint64_t deadline;

static void *write_loop(void *unused)
{
    struct gpu_status *draft = malloc(sizeof *draft);
    uint64_t changes = 0;
    (void)unused;
    for (; clock_us() < deadline; changes++) {
        if (!change_begin(state_gpu(&machine, 0), draft))
            exit(2);
        uint64_t mark = draft->used_mib + 1;
        draft->used_mib = mark;
        draft->process_count = mark % MAX_PROCESSES;
        for (uint64_t i = 0; i < draft->process_count; i++)
            draft->processes[i] = (struct gpu_process){.pid = 1, .memory_mib = mark};
        change_commit(state_gpu(&machine, 0), draft);
    }
    free(draft);
    return (void *)changes;
}

static void *read_loop(void *unused)
{
    struct gpu_status *status = malloc(sizeof *status);
    uint64_t reads = 0, last = 0;
    (void)unused;
    for (; clock_us() < deadline; reads++) {
        state_read(state_gpu(&machine, 0), status);
        bool right = status->used_mib >= last && status->process_count == status->used_mib % MAX_PROCESSES;
        for (uint64_t i = 0; i < status->process_count && right; i++)
            right = status->processes[i].memory_mib == status->used_mib;
        if (!right) {
            printf("torn at %llu\n", (unsigned long long)status->used_mib);
            exit(1);
        }
        last = status->used_mib;
    }
    free(status);
    return (void *)reads;
}

static int hold(void)
{
    struct shared_gpu *gpu = state_gpu(&machine, 0);
    if (!lock_take())
        return 2;
    memset(&gpu->status[(atomic_load(&gpu->version) + 1) & 1], 0xa5, sizeof gpu->status[0]);
    puts("holding");
    fflush(stdout);
    for (;;)
        pause();
}

/* The child must not get in while the parent is in: its descriptor is its own. */
static int fork_lock(void)
{
    int pipe_ends[2];
    char byte;
    if (!lock_take() || pipe(pipe_ends) != 0)
        return 2;
    lock_drop();
    pid_t child = fork();
    if (child == 0) {
        close(pipe_ends[0]);
        bool took = lock_take();
        if (took && write(pipe_ends[1], "x", 1) == 1)
            for (;;)
                pause();
        _exit(2);
    }
    close(pipe_ends[1]);
    if (read(pipe_ends[0], &byte, 1) != 1)
        return 2;
    printf("child %d holding\n", (int)child);
    fflush(stdout);
    puts(lock_take() ? "parent holding" : "parent failed"); /* only once somebody killed the child */
    fflush(stdout);
    waitpid(child, NULL, 0);
    return 0;
}

static int threads(void)
{
    pthread_t running[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&running[i], NULL, i < 2 ? write_loop : read_loop, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(running[i], NULL);
    return 0;
}

int main(int count, char **words)
{
    struct state_paths paths;
    struct fault fault = {{0}, false};
    if (count < 2 || !state_find_paths(&paths, &fault) || !state_attach(&machine, &paths, &fault)) {
        fprintf(stderr, "%s\n", fault.text);
        return 2;
    }
    deadline = clock_us() + (count > 2 ? strtoull(words[2], NULL, 10) : 0) * 1000;
    if (strcmp(words[1], "hold") == 0)
        return hold();
    if (strcmp(words[1], "fork") == 0)
        return fork_lock();
    if (strcmp(words[1], "threads") == 0)
        return threads();
    void *done = (strcmp(words[1], "write") == 0 ? write_loop : read_loop)(NULL);
    printf("%llu\n", (unsigned long long)(uintptr_t)done);
    return 0;
}
