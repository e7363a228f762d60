/* See change.h. Live processes that ended are left behind by every change, so their places are used again. */
#include "change.h"

#include "derive.h"
#include "lock.h"

bool change_begin(struct shared_gpu *gpu, struct gpu_status *draft)
{
    if (!lock_take())
        return false;
    state_read(gpu, draft);
    settle_energy(&gpu->facts, draft);
    forget_dead(draft);
    return true;
}

void change_commit(struct shared_gpu *gpu, const struct gpu_status *draft)
{
    state_write(gpu, draft);
    lock_drop();
}

void change_abandon(void)
{
    lock_drop();
}

void change_announce(const struct machine *machine, unsigned slot, const struct gpu_status *draft, uint64_t type, uint64_t data)
{
    state_write(state_gpu(machine, slot), draft);
    state_publish_event(machine->state, slot, type, data);
    lock_drop();
}
