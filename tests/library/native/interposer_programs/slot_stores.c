/*
 * Kills a process at each of its stores to the region, one after the other, and lets another one clear up after it. Linked with state/.
 *
 *   slot_stores REGION reap|claim|take_over EVERY
 *
 * A child does it, stepped instruction by instruction; after each store that changes a slot it is looked at, and at the n-th it is killed. Then this
 * process clears the dead: every slot must be free and empty. The first n is 1, each further one EVERY more, until the child gets to its end alive.
 * Out: at how many stores a process was killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interposer/state/internal.h"

enum { SLOTS = 3, DEVICES = 3, NOBODY = 4000000, MOST = 500 };

static struct region *region;
static struct region_slot before[SLOTS];

static void occupy(struct region_slot *slot, uint32_t pid, uint64_t start_time, bool locked)
{
    slot->start_time = start_time;
    slot->pid_namespace = process_namespace();
    slot->locked = locked;
    slot->claimed_ns = 1;
    for (int i = 0; i < DEVICES; i++) {
        slot->use[i].used = 1;
        slot->use[i].pending = 2;
        slot->use[i].overhead = 3;
        slot->use[i].inflight_ns = 4;
    }
    slot->pid = pid;
}

/* A dead process, one that became another program (its pid and start time are ours), and one that was killed while it cleared. */
static void prepare(const char *what)
{
    memset(region->slots, 0, sizeof region->slots[0] * SLOTS);
    region->slot_high = 0;
    if (strcmp(what, "reap") != 0)
        return;
    occupy(&region->slots[0], NOBODY, 1, false);
    occupy(&region->slots[1], (uint32_t)getpid(), process_start_time((uint32_t)getpid()), true);
    occupy(&region->slots[2], NOBODY | REGION_CLEARING, 1, true);
    region->slot_high = SLOTS;
}

static void be_killed(const char *what)
{
    vcuda_region();
    if (strcmp(what, "take_over") == 0) {
        occupy(&region->slots[1], (uint32_t)getpid(), process_start_time((uint32_t)getpid()), true);
        region->slot_high = SLOTS;
    }
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    if (strcmp(what, "reap") == 0)
        vcuda_reap();
    else
        vcuda_slot_number();
    raise(SIGSTOP);
    _exit(0);
}

static bool changed(void)
{
    if (memcmp(before, region->slots, sizeof before) == 0)
        return false;
    memcpy(before, region->slots, sizeof before);
    return true;
}

/* False: it came to its end before the n-th store. */
static bool kill_at(const char *what, int n)
{
    int status, stores = 0;
    pid_t child = fork();
    if (child == 0)
        be_killed(what);
    waitpid(child, &status, 0);
    memcpy(before, region->slots, sizeof before);
    while (stores < n && ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == SIGSTOP)
            break;
        stores += changed();
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return stores == n;
}

static bool is_clean(int n)
{
    static const struct region_use nothing;
    for (int i = 0; i < SLOTS; i++) {
        bool clean = region->slots[i].pid == 0;
        for (int device = 0; device < LIMITS_MAX_DEVICES; device++)
            clean = clean && memcmp((const void *)&region->slots[i].use[device], &nothing, sizeof nothing) == 0;
        if (!clean) {
            printf("killed at store %d: slot %d stays, pid %u, used %llu\n", n, i, (unsigned)region->slots[i].pid,
                   (unsigned long long)region->slots[i].use[0].used);
            return false;
        }
    }
    return true;
}

int main(int count, char **words)
{
    int file = count == 4 ? open(words[1], O_RDWR) : -1, n = 1, kills = 0;
    region = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED || vcuda_region() == NULL)
        return 2;
    for (bool killed = true; killed && n <= MOST; n += atoi(words[3])) {
        prepare(words[2]);
        killed = kill_at(words[2], n);
        kills += killed;
        vcuda_reap();
        if (!is_clean(n))
            return 1;
    }
    printf("%d stores\n", kills);
    return 0;
}
