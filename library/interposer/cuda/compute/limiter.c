/* The limiter's beginning, and the batches on their way into it. See limiter.h. */
#include "limiter.h"

#include <stdlib.h>

void limiter_init(struct limiter *limiter, const struct measuring *driver, struct estimates *estimates, struct budget budget)
{
    *limiter = (struct limiter){.budget = budget, .driver = driver, .estimates = estimates, .divided = true, .stretch = 256, .overlap = 256};
    limiter->inbox_end = &limiter->inbox;
    limiter->pending_end = &limiter->pending;
    limiter->settling_end = &limiter->settling;
    pthread_mutex_init(&limiter->inbox_lock, NULL);
    pthread_mutex_init(&limiter->harvest_lock, NULL);
}

/* What is saved up stays. A soft limit takes effect at the next tick, when the neighbours are known. */
void limiter_set(struct limiter *limiter, uint32_t cores, uint32_t soft_cores)
{
    atomic_store_explicit(&limiter->cores, cores, memory_order_relaxed);
    atomic_store_explicit(&limiter->soft_cores, soft_cores, memory_order_relaxed);
    atomic_store_explicit(&limiter->budget.rate, cores * 1000, memory_order_relaxed);
    if (limiter->presence.row != NULL) {
        atomic_store_explicit(&limiter->presence.row->cores, cores, memory_order_relaxed);
        atomic_store_explicit(&limiter->presence.row->soft_cores, soft_cores, memory_order_relaxed);
    }
}

struct batch *limiter_new_batch(struct limiter *limiter)
{
    pthread_mutex_lock(&limiter->inbox_lock);
    struct batch *batch = limiter->spare;
    if (batch != NULL)
        limiter->spare = batch->next;
    pthread_mutex_unlock(&limiter->inbox_lock);
    if (batch == NULL)
        return calloc(1, sizeof *batch);
    batch->next = NULL;
    batch->start = batch->end = NULL;
    batch->watch = batch->watched = batch->mixed = false;
    batch->reserved_ns = batch->estimated_ns = 0;
    batch->count = 0;
    return batch;
}

void limiter_free_batch(struct limiter *limiter, struct batch *batch)
{
    pthread_mutex_lock(&limiter->inbox_lock);
    batch->next = limiter->spare;
    limiter->spare = batch;
    pthread_mutex_unlock(&limiter->inbox_lock);
}

void limiter_submit(struct limiter *limiter, struct batch *batch)
{
    atomic_fetch_add_explicit(&limiter->budget.region->devices[limiter->budget.device].launches, batch->count, memory_order_relaxed);
    batch->next = NULL;
    pthread_mutex_lock(&limiter->inbox_lock);
    *limiter->inbox_end = batch;
    limiter->inbox_end = &batch->next;
    pthread_mutex_unlock(&limiter->inbox_lock);
}
