/* See pins.h. */
#include "pins.h"

#include "rest.h"

enum { PINS = 64 };

struct pin {
    _Atomic uintptr_t stream;           /* 0: free */
    const struct timebase *_Atomic timebase;
};

static struct pin pins[PINS];

struct pin *pin_stream(const struct timebase *timebase, CUstream stream)
{
    for (unsigned i = 0; i < PINS; i++) {
        uintptr_t none = 0;
        if (atomic_load_explicit(&pins[i].stream, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&pins[i].stream, &none, (uintptr_t)stream)) {
            atomic_store(&pins[i].timebase, timebase);
            return &pins[i];
        }
    }
    return NULL;
}

void unpin(struct pin *pin)
{
    if (pin == NULL)
        return;
    atomic_store(&pin->timebase, NULL);
    atomic_store(&pin->stream, 0);
}

void pins_wait_stream(CUstream stream)
{
    uint64_t began = 0;
    for (unsigned i = 0; i < PINS && stream != NULL; i++) {
        while (atomic_load(&pins[i].stream) == (uintptr_t)stream && rest_again(&began))
            ;
    }
}

void pins_wait(void)
{
    uint64_t began = 0;
    for (unsigned i = 0; i < PINS; i++) {
        while (atomic_load(&pins[i].stream) != 0 && rest_again(&began))
            ;
    }
}

void pins_wait_context(const struct timebase *timebase)
{
    uint64_t began = 0;
    for (unsigned i = 0; i < PINS; i++) {
        while (atomic_load(&pins[i].timebase) == timebase && rest_again(&began))
            ;
    }
}

void pins_forget(void)
{
    for (unsigned i = 0; i < PINS; i++)
        unpin(&pins[i]);
}
