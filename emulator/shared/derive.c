/* See derive.h. Pure but for the clock and /proc. */
#include "derive.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IDLE_CELSIUS = 31, LOAD_CELSIUS = 34 };

uint64_t own_pid_namespace(void)
{
    struct stat found;
    return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

/* Random bytes that the kernel gives each program at exec. */
uint64_t own_image(void)
{
    const void *random = (const void *)(uintptr_t)getauxval(AT_RANDOM);
    uint64_t image = 0;
    if (random != NULL)
        memcpy(&image, random, sizeof image);
    return image;
}

uint64_t process_start_time(uint32_t pid)
{
    enum { START_TIME_FIELD = 22, FIRST_AFTER_NAME = 3 };
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold anything, spaces too */
    if (at == NULL || at[1] == '\0' || at[2] == 'Z')
        return 0; /* a zombie holds no GPU memory */
    for (int field = FIRST_AFTER_NAME - 1; field < START_TIME_FIELD && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static bool is_dead(const struct gpu_process *process)
{
    if (process->start_time == 0 || process->pid_namespace != own_pid_namespace())
        return false;
    if (kill((pid_t)process->pid, 0) != 0 && errno == ESRCH)
        return true;
    return process_start_time(process->pid) != process->start_time;
}

void forget_dead(struct gpu_status *status)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < status->process_count; i++) {
        if (is_dead(&status->processes[i]))
            continue;
        if (kept != i)
            status->processes[kept] = status->processes[i];
        kept++;
    }
    status->process_count = kept;
}

/* CUDA processes are those of a view that have an outer pid. */
static uint32_t derived_percent(const struct gpu_status *status, size_t offset, int32_t given, bool with_cuda)
{
    uint64_t sum = 0;
    if (given >= 0)
        return (uint32_t)given;
    for (uint64_t i = 0; i < status->process_count; i++) {
        if (with_cuda || status->processes[i].outer_pid == 0)
            sum += *(const uint32_t *)((const char *)&status->processes[i] + offset);
    }
    return sum < 100 ? (uint32_t)sum : 100;
}

uint32_t gpu_utilisation(const struct gpu_status *status)
{
    return status->live_util > 0 ? status->live_util - 1 : scripted_utilisation(status);
}

uint32_t scripted_utilisation(const struct gpu_status *status)
{
    return derived_percent(status, offsetof(struct gpu_process, sm), status->gpu_util, false);
}

uint32_t memory_utilisation(const struct gpu_status *status)
{
    return derived_percent(status, offsetof(struct gpu_process, memory_util), status->memory_util, true);
}

uint64_t used_mib(const struct gpu_facts *facts, const struct gpu_status *status)
{
    uint64_t sum = status->used_mib, most = facts->memory_mib - facts->reserved_mib;
    for (uint64_t i = 0; i < status->process_count; i++)
        sum += status->processes[i].memory_mib;
    return sum < most ? sum : most;
}

static uint32_t power_at(const struct gpu_facts *facts, const struct gpu_status *status, uint32_t utilisation)
{
    if (status->power_w >= 0)
        return (uint32_t)status->power_w * 1000;
    uint32_t idle = facts->power_idle_w < status->power_limit_w ? facts->power_idle_w : status->power_limit_w;
    return idle * 1000 + (status->power_limit_w - idle) * 10 * utilisation;
}

uint32_t power_mw(const struct gpu_facts *facts, const struct gpu_status *status)
{
    return power_at(facts, status, gpu_utilisation(status));
}

uint32_t temperature_c(const struct gpu_status *status)
{
    if (status->temperature_c >= 0)
        return (uint32_t)status->temperature_c;
    return IDLE_CELSIUS + LOAD_CELSIUS * gpu_utilisation(status) / 100;
}

/* What CUDA processes use is in energy_mj already where the status is a view that shows them. */
uint64_t energy_mj(const struct gpu_facts *facts, const struct gpu_status *status, uint64_t now_us)
{
    if (now_us <= status->energy_since_us)
        return status->energy_mj;
    return status->energy_mj + (now_us - status->energy_since_us) / 1000 * power_at(facts, status, scripted_utilisation(status)) / 1000;
}

void settle_energy(const struct gpu_facts *facts, struct gpu_status *status)
{
    uint64_t now = clock_us();
    status->energy_mj = energy_mj(facts, status, now);
    status->energy_since_us = now;
}
