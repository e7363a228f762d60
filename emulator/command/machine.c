/* Subcommands about the machine as a whole: its profile, its state, its driver. */
#include <stdio.h>

#include "../shared/change.h"
#include "../shared/clients.h"
#include "../shared/lock.h"
#include "command.h"

int command_init(struct call *call)
{
    struct fault fault = {{0}, false};
    if (!state_reset(&call->paths, &fault))
        return complain(WRONG, "%s", fault.text);
    puts(call->paths.state);
    return DONE;
}

/* What was pending comes into force when the driver is loaded. */
static void apply_pending(const struct machine *machine)
{
    struct gpu_status draft;
    for (unsigned slot = 0; slot < machine->state->gpu_count; slot++) {
        struct shared_gpu *gpu = state_gpu(machine, slot);
        if (!change_begin(gpu, &draft))
            return;
        draft.ecc = draft.ecc_pending;
        draft.mig = draft.mig_pending;
        draft.ecc_errors[0][0] = draft.ecc_errors[0][1] = 0; /* the volatile ones */
        change_commit(gpu, &draft);
    }
}

int command_driver(struct call *call)
{
    static const char *const names[] = {"load", "unload", "mismatch", NULL}; /* as enum driver_state */
    struct shared_state *state = call->machine.state;
    unsigned wanted;
    if (!take_choice(call->words[0], "the driver's state", names, &wanted))
        return WRONG;
    if (!lock_take())
        return complain(FAILED, "%s cannot be written", call->paths.state);
    bool loads = wanted == DRIVER_LOADED && atomic_load(&state->driver_state) == DRIVER_UNLOADED;
    if (wanted != atomic_load(&state->driver_state))
        atomic_fetch_add(&state->driver_epoch, 1);
    atomic_store(&state->driver_state, wanted);
    lock_drop();
    if (loads)
        apply_pending(&call->machine);
    state_ring(state);
    return DONE;
}

int command_clients(struct call *call)
{
    for (pid_t pid = 0; (pid = clients_next(call->paths.state, pid)) != 0;)
        printf("%d\n", (int)pid);
    return DONE;
}
