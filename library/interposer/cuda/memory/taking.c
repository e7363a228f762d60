/* Taking and giving; see taking.h. */
#include "taking.h"

#include "graphs.h"
#include "owners.h"
#include "pools.h"

struct charges taking_pointers = CHARGES_EMPTY, taking_arrays = CHARGES_EMPTY;

bool taking_begin(struct taking *taking, uint64_t bytes)
{
    *taking = (struct taking){.bytes = bytes};
    taking->verdict = account_verdict_current(&taking->index);
    if (taking->verdict != VERDICT_COUNT || bytes == 0) {
        bool allowed = taking->verdict != VERDICT_REFUSE;
        taking->verdict = VERDICT_PASS;
        return allowed;
    }
    taking->owner = owners_current();
    account_begin(&taking->span, taking->index);
    if (account_take(taking->index, bytes))
        return true;
    account_end(&taking->span);
    return false;
}

bool taking_correct(struct taking *taking, uint64_t bytes)
{
    if (taking->verdict == VERDICT_PASS)
        return true;
    if (bytes > taking->bytes && !account_take(taking->index, bytes - taking->bytes))
        return false;
    if (bytes < taking->bytes)
        account_give(taking->index, taking->bytes - bytes);
    taking->bytes = bytes;
    return true;
}

void taking_fail(struct taking *taking)
{
    if (taking->verdict == VERDICT_PASS)
        return;
    account_give(taking->index, taking->bytes);
    account_end(&taking->span);
}

static void give(const struct charge *charge)
{
    if (charge->kind == CHARGE_POOLED) {
        pools_freed((struct pool *)(uintptr_t)charge->owner, charge->bytes);
        return;
    }
    if (charge->kind == CHARGE_GRAPH) {
        graphs_freed(charge->device, charge->bytes);
        return;
    }
    if (charge->kind == CHARGE_MANAGED)
        account_managed(charge->device, -(int64_t)charge->bytes);
    account_give(charge->device, charge->bytes);
}

bool taking_record(struct charges *table, uint64_t key, struct charge charge)
{
    struct charge replaced;

    if (!charges_put(table, key, charge, &replaced))
        return false;
    if (replaced.bytes != 0)
        give(&replaced);
    return true;
}

bool taking_end(struct taking *taking, struct charges *table, uint64_t key, enum charge_kind kind)
{
    if (taking->verdict == VERDICT_PASS)
        return true;
    if (!taking_record(table, key, (struct charge){taking->bytes, taking->owner, taking->index, kind}))
        return false;
    if (kind == CHARGE_MANAGED)
        account_managed(taking->index, (int64_t)taking->bytes);
    account_end(&taking->span);
    return true;
}

/* Out of the table first: as soon as the driver has freed it, another thread may be given the same address. */
void giving_begin(struct giving *giving, struct charges *table, uint64_t key)
{
    giving->table = table;
    giving->key = key;
    giving->known = charges_any(table) && charges_take(table, key, &giving->charge);
    if (giving->known)
        account_begin(&giving->span, giving->charge.device);
}

void giving_end(struct giving *giving, CUresult error)
{
    if (!giving->known)
        return;
    if (error == CUDA_SUCCESS)
        give(&giving->charge);
    else
        taking_record(giving->table, giving->key, giving->charge);
    account_end(&giving->span);
}

static void gone(const struct charge *charge, void *unused)
{
    (void)unused;
    give(charge);
}

void taking_context_gone(const void *context)
{
    charges_take_owned(&taking_pointers, context, gone, NULL);
    charges_take_owned(&taking_arrays, context, gone, NULL);
}

void taking_forget(void)
{
    charges_forget(&taking_pointers);
    charges_forget(&taking_arrays);
}
