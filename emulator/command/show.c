/* `show`: the machine as a table or as one JSON document. */
#include <inttypes.h>
#include <stdio.h>

#include "../shared/derive.h"
#include "../shared/occupants.h"
#include "command.h"

static const char *const presences[] = {"present", "lost", "removed"};
static const char *const kinds[] = {"compute", "graphics", "mps"};
static const char *const compute_modes[] = {"default", "exclusive_thread", "prohibited", "exclusive_process"};
static const char *const drivers[] = {"loaded", "unloaded", "mismatch"};

static void print_text(const char *text)
{
    putchar('"');
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            printf("\\%c", *at);
        else if (*at < 0x20)
            printf("\\u%04x", *at);
        else
            putchar(*at);
    }
    putchar('"');
}

static void print_pair(const char *key, const char *text)
{
    printf("\"%s\": ", key);
    print_text(text);
    fputs(", ", stdout);
}

static void print_processes(const struct gpu_status *status)
{
    for (uint64_t i = 0; i < status->process_count; i++) {
        const struct gpu_process *process = &status->processes[i];
        printf("%s{\"pid\": %u, ", i == 0 ? "" : ", ", process->pid);
        print_pair("name", process->name);
        print_pair("type", kinds[process->kind % 3]);
        printf("\"memory_mib\": %" PRIu64 ", \"sm\": %u, \"memory_util\": %u, \"live\": %s}", process->memory_mib, process->sm,
               process->memory_util, process->start_time != 0 || process->outer_pid != 0 ? "true" : "false");
    }
}

static void print_gpu(unsigned slot, const struct gpu_facts *facts, const struct gpu_status *status)
{
    printf("%s\n  {\"position\": %u, \"minor\": %u, ", slot == 0 ? "" : ",", slot, facts->minor);
    print_pair("uuid", facts->uuid);
    print_pair("name", facts->name);
    print_pair("bus_id", facts->bus_id);
    print_pair("presence", presences[status->presence % 3]);
    print_pair("compute_mode", compute_modes[status->compute_mode % 4]);
    printf("\"numa\": %d, \"mig\": %s, \"memory_mib\": %" PRIu64 ", \"reserved_mib\": %" PRIu64 ", \"used_mib\": %" PRIu64
           ", \"gpu_util\": %u, \"memory_util\": %u, \"temperature_c\": %u, \"power_w\": %u, \"processes\": [",
           facts->numa, status->mig ? "true" : "false", facts->memory_mib, facts->reserved_mib, used_mib(facts, status),
           gpu_utilisation(status), memory_utilisation(status), temperature_c(status), power_mw(facts, status) / 1000);
    print_processes(status);
    fputs("]}", stdout);
}

static void print_row(unsigned slot, const struct gpu_facts *facts, const struct gpu_status *status)
{
    printf("%3u %5u  %-28.28s %-40s %-16s %4d %7" PRIu64 " /%7" PRIu64 " %4u%% %5" PRIu64 "  %s\n", slot, facts->minor, facts->name,
           facts->uuid, facts->bus_id, facts->numa, used_mib(facts, status), facts->memory_mib, gpu_utilisation(status),
           status->process_count, presences[status->presence % 3]);
}

static void print_head(const struct call *call)
{
    const struct shared_state *state = call->machine.state;
    const char *driver = drivers[atomic_load(&state->driver_state) % 3];
    if (!call->json) {
        printf("%s, driver %s (%s), CUDA %u.%u\n%3s %5s  %-28s %-40s %-16s %4s %16s %5s %5s  %s\n", state->name, state->driver, driver,
               state->cuda / 1000, state->cuda % 1000 / 10, "GPU", "minor", "name", "uuid", "bus", "NUMA", "memory used, MiB", "util", "procs",
               "state");
        return;
    }
    putchar('{');
    print_pair("name", state->name);
    print_pair("driver", state->driver);
    print_pair("driver_state", driver);
    print_pair("state_file", call->paths.state);
    printf("\"cuda\": \"%u.%u\", \"gpus\": [", state->cuda / 1000, state->cuda % 1000 / 10);
}

int command_show(struct call *call)
{
    struct gpu_status status;
    print_head(call);
    for (unsigned slot = 0; slot < call->machine.state->gpu_count; slot++) {
        const struct shared_gpu *gpu = state_gpu(&call->machine, slot);
        state_read(gpu, &status);
        forget_dead(&status);
        show_occupants(&call->machine, call->paths.state, slot, &status);
        (call->json ? print_gpu : print_row)(slot, &gpu->facts, &status);
    }
    if (call->json)
        puts("\n]}");
    return DONE;
}
