/*
 * The slots of the region: what the words of one say, and which of them is ours.
 *
 * In: the region. Out: whose a slot is, who has imported memory of it, a slot without what it counted. Not here: claiming one (slot.c), and clearing
 * those of the dead (reap.c).
 */
#include "internal.h"

struct region_slot *_Atomic vcuda_own_slot;
_Atomic uint32_t vcuda_own_pid;
_Atomic uint64_t vcuda_own_namespace;     /* as it stands in the slot */
static _Atomic uint64_t own_namespace;     /* as the kernel says; 0: not asked yet */

uint32_t slot_high(const struct region *region)
{
    uint32_t high = atomic_load(&region->slot_high);
    return high < REGION_SLOTS ? high : REGION_SLOTS;
}

/* pid, start time and namespace stay: if the clearer is killed, the next one judges the slot the same way. */
void slot_clear(struct region_slot *slot)
{
    for (int i = 0; i < LIMITS_MAX_DEVICES; i++) {
        atomic_store(&slot->use[i].used, 0);
        atomic_store(&slot->use[i].pending, 0);
        atomic_store(&slot->use[i].overhead, 0);
        atomic_store(&slot->use[i].inflight_ns, 0);
    }
    for (int i = 0; i < REGION_LENDERS / 64; i++)
        atomic_store(&slot->lenders[i], 0);
}

void slot_forget_namespace(void)
{
    atomic_store(&own_namespace, 0);
}

uint64_t slot_namespace(void)
{
    uint64_t known = atomic_load(&own_namespace);
    if (known == 0) {
        vcuda_on_fork(slot_forget_namespace);
        known = process_namespace();
        atomic_store(&own_namespace, known);
    }
    return known;
}

bool slot_is_of(const struct region_slot *slot, uint32_t pid)
{
    return atomic_load(&slot->pid) == pid && atomic_load(&slot->pid_namespace) == slot_namespace();
}

bool slot_is_own(const struct region_slot *slot)
{
    return slot != NULL && vcuda_slot_is_own(slot);
}

static uint32_t word_of(uint32_t lender)
{
    return lender % REGION_LENDERS / 64;
}

static uint64_t bit_of(uint32_t lender)
{
    return UINT64_C(1) << lender % 64;
}

void slot_add_lender(struct region_slot *slot, uint32_t lender)
{
    atomic_fetch_or(&slot->lenders[word_of(lender)], bit_of(lender));
}

void slot_remove_lender(struct region_slot *slot, uint32_t lender)
{
    atomic_fetch_and(&slot->lenders[word_of(lender)], ~bit_of(lender));
}

int slot_borrower(const struct region *region, uint32_t lender, uint32_t from)
{
    for (uint32_t i = from, high = slot_high(region); i < high; i++) {
        const struct region_slot *slot = &region->slots[i];
        uint64_t bits = i == lender ? 0 : atomic_load(&slot->lenders[word_of(lender)]);
        if ((bits & bit_of(lender)) != 0 && atomic_load(&slot->pid) != 0)
            return (int)i;
    }
    return -1;
}

bool slot_is_borrowed(const struct region *region, uint32_t lender)
{
    return slot_borrower(region, lender, 0) >= 0;
}
