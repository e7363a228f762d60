/* What /proc tells of a process: since when it runs, in which pid namespace, whether it is dead. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"

enum { STATE = 3, FLAGS = 9, THREADS = 20, START = 22, PF_EXITING = 4 };   /* fields of /proc/PID/stat, counted from 1 */

struct process {
    char state;
    unsigned long long flags, threads, start_time;
};

uint64_t process_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/* The field `number` of a line whose name may hold anything, brackets included. */
static const char *field(const char *line, int number)
{
    const char *place = strrchr(line, ')');
    for (int at = 2; place != NULL && at < number; at++) {
        place = strchr(place, ' ');
        place = place == NULL ? NULL : place + 1;
    }
    return place;
}

/* 0, ENOENT: there is no such process, or another error. */
static int read_process(uint32_t pid, struct process *process)
{
    char path[32], line[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno;
    ssize_t length = read(file, line, sizeof line - 1);
    int error = length < 0 ? errno : 0;
    close(file);
    if (length < 0)
        return error == ESRCH ? ENOENT : error;
    line[length] = '\0';
    const char *state = field(line, STATE), *flags = field(line, FLAGS), *threads = field(line, THREADS), *start = field(line, START);
    if (start == NULL)
        return EIO;
    *process = (struct process){*state, strtoull(flags, NULL, 10), strtoull(threads, NULL, 10), strtoull(start, NULL, 10)};
    return 0;
}

uint64_t process_start_time(uint32_t pid)
{
    struct process process;
    return read_process(pid, &process) == 0 ? process.start_time : 0;
}

/* A zombie whose other threads still run is one whose first thread ended. */
static bool has_ended(const struct process *process)
{
    return (process->state == 'Z' || process->state == 'X') && process->threads <= 1;
}

static bool is_it(const struct process *process, uint64_t start_time)
{
    return start_time == 0 || process->start_time == start_time;
}

/* Without a descriptor: a child that has ended and was not waited for, and is not by this. */
static bool is_ended_child(uint32_t pid)
{
    siginfo_t found = {0};
    return waitid(P_PID, pid, &found, WEXITED | WNOHANG | WNOWAIT) == 0 && found.si_pid == (pid_t)pid;
}

/* Unknown counts as alive. `start_time` 0: not known. */
bool process_is_dead(uint32_t pid, uint64_t start_time)
{
    struct process process;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    int error = read_process(pid, &process);
    if (error == EMFILE || error == ENFILE)
        return is_ended_child(pid);
    return error == 0 && (has_ended(&process) || !is_it(&process, start_time));
}

bool process_is_ending(uint32_t pid, uint64_t start_time)
{
    struct process process;
    return read_process(pid, &process) == 0 && is_it(&process, start_time) && !has_ended(&process) && (process.flags & PF_EXITING) != 0;
}
