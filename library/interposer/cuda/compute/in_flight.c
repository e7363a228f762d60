/* See in_flight.h. */
#include "in_flight.h"

#include "sleep_until.h"

enum { IN_FLIGHT_MOST = 64 };

struct in_flight {
    _Atomic uintptr_t stream;           /* 0: free */
    const struct timebase *_Atomic timebase;
};

static struct in_flight marks[IN_FLIGHT_MOST];

struct in_flight *in_flight_begin(const struct timebase *timebase, CUstream stream)
{
    for (unsigned i = 0; i < IN_FLIGHT_MOST; i++) {
        uintptr_t none = 0;
        if (atomic_load_explicit(&marks[i].stream, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&marks[i].stream, &none, (uintptr_t)stream)) {
            atomic_store(&marks[i].timebase, timebase);
            return &marks[i];
        }
    }
    return NULL;
}

void in_flight_end(struct in_flight *in_flight)
{
    if (in_flight == NULL)
        return;
    atomic_store(&in_flight->timebase, NULL);
    atomic_store(&in_flight->stream, 0);
}

void in_flight_wait_stream(CUstream stream)
{
    uint64_t began = 0;
    for (unsigned i = 0; i < IN_FLIGHT_MOST && stream != NULL; i++) {
        while (atomic_load(&marks[i].stream) == (uintptr_t)stream && sleep_again(&began))
            ;
    }
}

void in_flight_wait(void)
{
    uint64_t began = 0;
    for (unsigned i = 0; i < IN_FLIGHT_MOST; i++) {
        while (atomic_load(&marks[i].stream) != 0 && sleep_again(&began))
            ;
    }
}

void in_flight_wait_context(const struct timebase *timebase)
{
    uint64_t began = 0;
    for (unsigned i = 0; i < IN_FLIGHT_MOST; i++) {
        while (atomic_load(&marks[i].timebase) == timebase && sleep_again(&began))
            ;
    }
}

void in_flight_forget(void)
{
    for (unsigned i = 0; i < IN_FLIGHT_MOST; i++)
        in_flight_end(&marks[i]);
}
