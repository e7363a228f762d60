/*
 * One allocation from its reservation to its record, and back: what every hook of memory that lies in a context has in common.
 *
 * In: a size, the driver's answer, the address or handle that it gave. Out: the answer for the application. Not here: memory of pools and of
 * cuMemCreate, which is counted by its holders.
 * Invariants: what the driver refused is not charged; what cannot be recorded is not kept; what was charged is given back after the
 * driver took the memory back and not before, and once.
 */
#ifndef VCUDA_MEMORY_CHARGING_H
#define VCUDA_MEMORY_CHARGING_H

#include "account.h"
#include "charges.h"
#include "interposer/cuda/hooks.h"

extern struct charges charged_pointers, charged_arrays, charged_limits;

struct charging {
    enum verdict verdict;
    unsigned index;
    uint64_t bytes;
    const void *owner;
    struct account_span span;
};

/* False: to be refused, CUDA_ERROR_OUT_OF_MEMORY. In the current context's device. */
bool charge_begin(struct charging *charging, uint64_t bytes);

/* The driver made it larger or smaller than was thought; false: there is no room for it. */
bool charge_correct(struct charging *charging, uint64_t bytes);

/* The driver refused, or what it made was undone. */
void charge_fail(struct charging *charging);

/* Records it; false: there is no host memory to, and it has to be undone. */
bool charge_end(struct charging *charging, struct charges *table, uint64_t key, enum charge_kind kind);

/* False: there is no host memory for it. What the key stood for before was freed somehow: it is given back. */
bool charge_record(struct charges *table, uint64_t key, struct charge charge);

/* Around a call of the driver that frees. */
struct uncharging {
    bool known;
    uint64_t key;
    struct charge charge;
    struct charges *table;
    struct account_span span;
};
void uncharge_begin(struct uncharging *uncharging, struct charges *table, uint64_t key);
void uncharge_end(struct uncharging *uncharging, CUresult error);

/* Everything that was allocated in a context is gone. */
void charge_context_gone(const void *context);

/* In a child after fork. */
void charge_forget(void);

#endif
