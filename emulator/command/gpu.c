/* Subcommands that change one GPU. Each is one transaction, seen by every running process at once. */
#include <nvml.h>
#include <stdio.h>
#include <string.h>

#include "../shared/change.h"
#include "../shared/clients.h"
#include "../shared/derive.h"
#include "../shared/lock.h"
#include "../shared/occupants.h"
#include "command.h"

enum { XID_MOST = 65535, XID_FELL_OFF_THE_BUS = 79, WATTS_MOST = 10000, CELSIUS_MOST = 150, ERRORS_MOST = 1 << 30 };

static bool begin(struct call *call, unsigned slot, struct gpu_status *draft)
{
    if (change_begin(state_gpu(&call->machine, slot), draft))
        return true;
    complain(FAILED, "%s cannot be written", call->paths.state);
    return false;
}

static int commit(struct call *call, unsigned slot, const struct gpu_status *draft)
{
    change_commit(state_gpu(&call->machine, slot), draft);
    return DONE;
}

int command_xid(struct call *call)
{
    unsigned slot;
    long code;
    if (!take_gpu(call, 0, &slot) || !take_whole(call, 1, "an XID", 0, XID_MOST, &code))
        return WRONG;
    if (!lock_take())
        return complain(FAILED, "%s cannot be written", call->paths.state);
    state_publish_event(call->machine.state, slot, nvmlEventTypeXidCriticalError, (uint64_t)code);
    lock_drop();
    return DONE;
}

/* Away from PRESENT there is one event, back there is none: a driver has nothing to say about a GPU that works. */
static int set_presence(struct call *call, enum presence presence)
{
    unsigned slot;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    bool falls = presence != PRESENT && draft.presence == PRESENT;
    draft.presence = presence;
    draft.wait_error = presence != PRESENT && call->wait_error;
    if (falls && !call->silent)
        change_announce(&call->machine, slot, &draft, nvmlEventTypeXidCriticalError, XID_FELL_OFF_THE_BUS);
    else
        commit(call, slot, &draft);
    state_ring(call->machine.state); /* those who wait may have to fail */
    return DONE;
}

int command_lose(struct call *call)
{
    return set_presence(call, LOST);
}

int command_remove(struct call *call)
{
    return set_presence(call, REMOVED);
}

int command_recover(struct call *call)
{
    return set_presence(call, PRESENT);
}

int command_util(struct call *call)
{
    unsigned slot;
    int32_t gpu = -1, memory = -1;
    struct gpu_status draft;
    bool automatic = call->count == 2 && strcmp(call->words[1], "auto") == 0;
    if (!take_gpu(call, 0, &slot))
        return WRONG;
    if (!automatic && (!take_or_auto(call, 1, "SM%", 100, &gpu) || !take_or_auto(call, 2, "MEM%", 100, &memory)))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.gpu_util = gpu;
    draft.memory_util = memory;
    return commit(call, slot, &draft);
}

int command_compute_mode(struct call *call)
{
    static const char *const names[] = {"default", "exclusive_thread", "prohibited", "exclusive_process", NULL}; /* NVML's order */
    unsigned slot, mode;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot) || !take_choice(call->words[1], "the compute mode", names, &mode))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.compute_mode = mode;
    return commit(call, slot, &draft);
}

int command_mig(struct call *call)
{
    static const char *const names[] = {"off", "on", NULL};
    unsigned slot, mode;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot) || !take_choice(call->words[1], "MIG mode", names, &mode))
        return WRONG;
    if (!state_gpu(&call->machine, slot)->facts.mig_capable)
        return complain(FAILED, "GPU %u (%s) has no MIG", slot, state_gpu(&call->machine, slot)->facts.name);
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.mig = draft.mig_pending = mode;
    return commit(call, slot, &draft);
}

int command_memory(struct call *call)
{
    unsigned slot;
    long mib;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot))
        return WRONG;
    const struct gpu_facts *facts = &state_gpu(&call->machine, slot)->facts;
    if (!take_whole(call, 1, "MIB", 0, (long)(facts->memory_mib - facts->reserved_mib), &mib))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.used_mib = (uint64_t)mib;
    return commit(call, slot, &draft);
}

int command_ecc(struct call *call)
{
    static const char *const names[] = {"corrected", "uncorrected", NULL}; /* NVML's order */
    unsigned slot, kind;
    long errors;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot) || !take_choice(call->words[1], "the kind of error", names, &kind) ||
        !take_whole(call, 2, "COUNT", 1, ERRORS_MOST, &errors))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    if (!draft.ecc) {
        change_abandon();
        return complain(FAILED, "GPU %u has no ECC switched on", slot);
    }
    draft.ecc_errors[NVML_VOLATILE_ECC][kind] += (uint64_t)errors;
    draft.ecc_errors[NVML_AGGREGATE_ECC][kind] += (uint64_t)errors;
    change_announce(&call->machine, slot, &draft, kind == 0 ? nvmlEventTypeSingleBitEccError : nvmlEventTypeDoubleBitEccError, 0);
    return DONE;
}

int command_temperature(struct call *call)
{
    unsigned slot;
    int32_t celsius;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot) || !take_or_auto(call, 1, "CELSIUS", CELSIUS_MOST, &celsius))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.temperature_c = celsius;
    return commit(call, slot, &draft);
}

int command_power(struct call *call)
{
    unsigned slot;
    int32_t watts;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot) || !take_or_auto(call, 1, "WATTS", WATTS_MOST, &watts))
        return WRONG;
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.power_w = watts;
    return commit(call, slot, &draft);
}

/* The process that keeps a GPU from a reset: one that runs on it, or one that has NVML open, whichever GPU it asks about. */
static pid_t user_of(const struct call *call, unsigned slot)
{
    struct gpu_status status;
    state_read(state_gpu(&call->machine, slot), &status);
    forget_dead(&status);
    show_occupants(&call->machine, call->paths.state, slot, &status);
    return status.process_count > 0 ? (pid_t)status.processes[0].pid : clients_next(call->paths.state, 0);
}

int command_reset(struct call *call)
{
    unsigned slot;
    struct gpu_status draft;
    if (!take_gpu(call, 0, &slot))
        return WRONG;
    pid_t user = user_of(call, slot);
    if (user != 0)
        return complain(FAILED, "GPU %u is in use by another client: process %d", slot, (int)user);
    if (!begin(call, slot, &draft))
        return FAILED;
    draft.presence = PRESENT;
    draft.ecc_errors[NVML_VOLATILE_ECC][0] = draft.ecc_errors[NVML_VOLATILE_ECC][1] = 0;
    return commit(call, slot, &draft);
}
