/*
 * The ring of events and the doorbell that wakes those who wait for them.
 *
 * An event's sequence is 0 while it is written and published after its body, so a writer killed half way leaves a gap that
 * readers pass over, not garbage. The doorbell is a futex in the shared page: waiting costs no CPU.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"

void state_publish_event(struct shared_state *state, uint32_t gpu, uint64_t type, uint64_t data)
{
    uint64_t sequence = atomic_load(&state->event_head) + 1;
    struct shared_event *event = &state->events[sequence % MAX_EVENTS];
    atomic_store(&event->sequence, 0);
    atomic_store(&event->gpu, gpu);
    atomic_store(&event->type, type);
    atomic_store(&event->data, data);
    atomic_store(&event->sequence, sequence);
    atomic_store(&state->event_head, sequence);
    state_ring(state);
}

void state_ring(struct shared_state *state)
{
    atomic_fetch_add(&state->doorbell, 1);
    syscall(SYS_futex, &state->doorbell, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

void state_wait_ring(const struct shared_state *state, uint32_t seen, const struct timespec *timeout)
{
    syscall(SYS_futex, &state->doorbell, FUTEX_WAIT, seen, timeout, NULL, 0);
}
