/* `process add` and `process remove`: the list of processes of one GPU. */
#include <stdio.h>
#include <string.h>

#include "../shared/change.h"
#include "../shared/derive.h"
#include "command.h"

enum { PID_MOST = 1 << 22 };

static struct gpu_process *find(struct gpu_status *draft, uint32_t pid)
{
    for (uint64_t i = 0; i < draft->process_count; i++) {
        if (draft->processes[i].pid == pid)
            return &draft->processes[i];
    }
    return NULL;
}

static bool read_process(struct call *call, long pid, struct gpu_process *process)
{
    static const char *const types[] = {"compute", "graphics", "mps", NULL}; /* as enum process_kind */
    long mib, sm = 0, memory = 0;
    if (!take_whole(call, 3, "MIB", 0, 1 << 24, &mib) || (call->count > 4 && !take_whole(call, 4, "SM%", 0, 100, &sm)) ||
        (call->count > 5 && !take_whole(call, 5, "MEM%", 0, 100, &memory)) ||
        (call->type != NULL && !take_choice(call->type, "--type", types, &process->kind)))
        return false;
    process->pid = (uint32_t)pid;
    process->memory_mib = (uint64_t)mib;
    process->sm = (uint32_t)sm;
    process->memory_util = (uint32_t)memory;
    snprintf(process->name, sizeof process->name, "%s", call->name == NULL ? "" : call->name);
    return true;
}

/* From now on the process is on the list for as long as it runs; its start time distinguishes it from a later process with the same pid. */
static bool tie_to_life(struct gpu_process *process)
{
    process->start_time = process_start_time(process->pid);
    process->pid_namespace = own_pid_namespace();
    return process->start_time != 0;
}

/* Adding a process that is there already changes it. */
static int add(struct call *call, unsigned slot, long pid)
{
    struct gpu_process process = {0}, *place;
    struct gpu_status draft;
    if (!read_process(call, pid, &process))
        return WRONG;
    if (call->live && !tie_to_life(&process))
        return complain(FAILED, "there is no process %ld that could be live", pid);
    struct shared_gpu *gpu = state_gpu(&call->machine, slot);
    if (!change_begin(gpu, &draft))
        return complain(FAILED, "%s cannot be written", call->paths.state);
    place = find(&draft, (uint32_t)pid);
    if (place == NULL && draft.process_count == MAX_PROCESSES) {
        change_abandon();
        return complain(FAILED, "GPU %u has %d processes and no place for another", slot, MAX_PROCESSES);
    }
    if (place == NULL)
        place = &draft.processes[draft.process_count++];
    *place = process;
    change_commit(gpu, &draft);
    return DONE;
}

static int take_off(struct call *call, unsigned slot, long pid)
{
    struct gpu_status draft;
    struct shared_gpu *gpu = state_gpu(&call->machine, slot);
    if (!change_begin(gpu, &draft))
        return complain(FAILED, "%s cannot be written", call->paths.state);
    struct gpu_process *place = find(&draft, (uint32_t)pid);
    if (place == NULL) {
        change_abandon();
        return complain(FAILED, "GPU %u has no process %ld", slot, pid);
    }
    uint64_t behind = draft.process_count - (uint64_t)(place - draft.processes) - 1;
    memmove(place, place + 1, behind * sizeof *place);
    draft.process_count--;
    change_commit(gpu, &draft);
    return DONE;
}

int command_process(struct call *call)
{
    static const char *const verbs[] = {"add", "remove", NULL};
    unsigned verb, slot;
    long pid;
    if (!take_choice(call->words[0], "the verb", verbs, &verb) || !take_gpu(call, 1, &slot) || !take_whole(call, 2, "PID", 1, PID_MOST, &pid))
        return WRONG;
    return verb == 0 ? add(call, slot, pid) : take_off(call, slot, pid);
}
