/*
 * Which processes of the container have imported memory of which: bits in the slot of the one that imported.
 *
 * In: the pid of an exporter. Out: its slot, marked, or that there is none. Not here: what was imported (cuda/memory/backing.h).
 * Invariants: a process marks first and then looks whether the lender lives; who clears a slot sees that its process is dead first and then looks
 * for marks of the living. So either the mark is seen, or the lender is found dead. Bits stand for several slots where there are more than REGION_LENDERS:
 * then a dead one's slot is kept longer than needed, never shorter.
 */
#include "internal.h"

static unsigned borrowed[REGION_LENDERS];   /* so often by this process */

/* The newest: the slot of a program that ran in that process before exec is kept while its memory is borrowed. */
static bool find(uint32_t pid, struct vcuda_lender *lender)
{
    struct region *region = vcuda_region();
    bool found = false;
    for (uint32_t i = 0, high = region == NULL ? 0 : slot_high(region); i < high; i++) {
        const struct region_slot *slot = &region->slots[i];
        uint64_t claimed_ns = atomic_load(&slot->claimed_ns);
        if (!slot_is_of(slot, pid))
            continue;
        if (!found || claimed_ns > lender->claimed_ns)
            *lender = (struct vcuda_lender){pid, i, claimed_ns};
        found = true;
    }
    return found;
}

static void forget(void)
{
    for (unsigned i = 0; i < REGION_LENDERS; i++)
        borrowed[i] = 0;
}

static void restore(struct region_slot *own)
{
    for (uint32_t i = 0; i < REGION_LENDERS; i++) {
        if (borrowed[i] != 0)
            slot_add_lender(own, i);
    }
}

bool vcuda_borrow(uint32_t pid, struct vcuda_lender *lender)
{
    if (!vcuda_region_shared() || slot_is_outside() || !find(pid, lender))
        return false;
    vcuda_on_fork(forget);
    vcuda_on_slot(restore);
    if (borrowed[lender->number % REGION_LENDERS]++ == 0)
        slot_add_lender(vcuda_slot(), lender->number);
    if (!slot_has_ended(lender->number, lender->claimed_ns))
        return true;
    vcuda_return(lender);
    return false;
}

void vcuda_return(const struct vcuda_lender *lender)
{
    if (--borrowed[lender->number % REGION_LENDERS] == 0)
        slot_remove_lender(vcuda_slot(), lender->number);
}

bool vcuda_lender_ended(const struct vcuda_lender *lender)
{
    return slot_has_ended(lender->number, lender->claimed_ns);
}

bool vcuda_lends(void)
{
    int number = vcuda_slot_number();
    return number >= 0 && slot_is_borrowed(vcuda_region(), (uint32_t)number);
}
