/* Charging and uncharging; see charging.h. */
#include "charging.h"

#include "graphs.h"
#include "memory.h"
#include "owners.h"
#include "pools.h"

struct charges charged_pointers, charged_arrays, charged_limits;

bool charge_begin(struct charging *charging, uint64_t bytes)
{
    CUcontext current = owners_context();

    *charging = (struct charging){.bytes = bytes, .owner = owners_of(current)};
    charging->verdict = account_verdict_of(current, &charging->index);
    if (charging->verdict != VERDICT_COUNT || bytes == 0) {
        bool allowed = charging->verdict != VERDICT_REFUSE;
        charging->verdict = VERDICT_PASS;
        return allowed;
    }
    memory_meet(charging->index);
    return account_open(&charging->span, charging->index, bytes);
}

bool charge_correct(struct charging *charging, uint64_t bytes)
{
    if (charging->verdict == VERDICT_PASS)
        return true;
    if (bytes > charging->bytes && !account_charge(charging->index, bytes - charging->bytes))
        return false;
    if (bytes < charging->bytes)
        account_uncharge(charging->index, charging->bytes - bytes);
    charging->bytes = bytes;
    return true;
}

void charge_fail(struct charging *charging)
{
    if (charging->verdict == VERDICT_PASS)
        return;
    account_close(&charging->span, charging->bytes);
}

static bool is_with_another(const struct charge *charge)
{
    return charge->kind == CHARGE_POOLED || charge->kind == CHARGE_GRAPH;
}

static void uncount_managed(const struct charge *charge)
{
    if (charge->kind == CHARGE_MANAGED)
        account_managed(charge->device, -(int64_t)charge->bytes);
}

static void uncharge(const struct charge *charge)
{
    if (charge->kind == CHARGE_POOLED) {
        pools_freed((struct pool *)(uintptr_t)charge->owner, charge->bytes);
        return;
    }
    if (charge->kind == CHARGE_GRAPH) {
        graphs_freed(charge->device, charge->bytes);
        return;
    }
    uncount_managed(charge);
    account_uncharge(charge->device, charge->bytes);
}

bool charge_record(struct charges *table, uint64_t key, struct charge charge)
{
    struct charge replaced;

    if (!charges_put(table, key, charge, &replaced))
        return false;
    if (replaced.bytes != 0)
        uncharge(&replaced);
    return true;
}

bool charge_end(struct charging *charging, struct charges *table, uint64_t key, enum charge_kind kind)
{
    if (charging->verdict == VERDICT_PASS)
        return true;
    if (!charge_record(table, key, (struct charge){charging->bytes, charging->owner, charging->index, kind}))
        return false;
    if (kind == CHARGE_MANAGED)
        account_managed(charging->index, (int64_t)charging->bytes);
    account_end(&charging->span);
    return true;
}

/* Out of the table first: as soon as the driver has freed it, another thread may be given the same address. */
void uncharge_begin(struct uncharging *uncharging, struct charges *table, uint64_t key)
{
    uncharging->table = table;
    uncharging->key = key;
    uncharging->known = charges_ever(table) && charges_take(table, key, &uncharging->charge);
    if (uncharging->known)
        account_begin(&uncharging->span, uncharging->charge.device);
}

void uncharge_end(struct uncharging *uncharging, CUresult error)
{
    if (!uncharging->known)
        return;
    if (error == CUDA_SUCCESS && !is_with_another(&uncharging->charge)) {
        uncount_managed(&uncharging->charge);
        account_close(&uncharging->span, uncharging->charge.bytes);
        return;
    }
    if (error == CUDA_SUCCESS)
        uncharge(&uncharging->charge);
    else
        charge_record(uncharging->table, uncharging->key, uncharging->charge);
    account_end(&uncharging->span);
}

static void gone(const struct charge *charge, void *unused)
{
    (void)unused;
    uncharge(charge);
}

void charge_context_gone(const void *context)
{
    charges_take_owned(&charged_pointers, context, gone, NULL);
    charges_take_owned(&charged_arrays, context, gone, NULL);
    charges_take_owned(&charged_limits, context, gone, NULL);
}

void charge_forget(void)
{
    charges_forget(&charged_pointers);
    charges_forget(&charged_arrays);
    charges_forget(&charged_limits);
}
