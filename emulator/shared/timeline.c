/* See timeline.h. All numbers are whole nanoseconds and exact: V only ever moves by whole ones, and its time by n times as many. */
#include "timeline.h"

#include <string.h>

static uint64_t end_of(const struct timeline_slot *slot)
{
    return atomic_load_explicit(&slot->end, memory_order_acquire) >> 1;
}

const struct timeline_now *timeline_read(const struct timeline *timeline)
{
    return &timeline->now[atomic_load_explicit(&timeline->version, memory_order_acquire) & 1];
}

static void publish(struct timeline *timeline, const struct timeline_now *now)
{
    uint64_t version = atomic_load_explicit(&timeline->version, memory_order_relaxed);
    timeline->now[(version + 1) & 1] = *now;
    atomic_store_explicit(&timeline->version, version + 1, memory_order_release);
}

/* From here on V runs at another rate. */
static void mark(struct timeline *timeline, struct timeline_now *now)
{
    timeline->ring[now->points % TIMELINE_POINTS] = (struct timeline_point){now->t, now->v};
    now->points++;
}

static unsigned used_slots(const struct timeline *timeline)
{
    unsigned high = atomic_load_explicit(&timeline->slot_high, memory_order_acquire);
    return high < TIMELINE_SLOTS ? high : TIMELINE_SLOTS;
}

/* Ends above `v`: how many, and the nearest. */
static unsigned find_active(const struct timeline *timeline, uint64_t v, uint64_t *nearest)
{
    unsigned count = 0, high = used_slots(timeline);
    *nearest = UINT64_MAX;
    for (unsigned i = 0; i < high; i++) {
        uint64_t end = end_of(&timeline->slots[i]);
        if (end <= v)
            continue;
        count++;
        if (end < *nearest)
            *nearest = end;
    }
    return count;
}

unsigned timeline_active(const struct timeline *timeline)
{
    uint64_t nearest;
    return find_active(timeline, timeline_read(timeline)->v, &nearest);
}

bool timeline_is_active(const struct timeline *timeline, unsigned slot)
{
    return end_of(&timeline->slots[slot]) > timeline_read(timeline)->v;
}

/* An end that V has passed cannot be extended any more. True: it lies at or below `v` for good. */
static bool close_end(struct timeline_slot *slot, uint64_t v)
{
    uint64_t seen = atomic_load(&slot->end);
    while (seen >> 1 <= v) {
        if ((seen & 1) != 0 || atomic_compare_exchange_weak(&slot->end, &seen, seen | 1))
            return true;
    }
    return false;
}

/* V reached the nearest end: a process that did not extend its end in time is removed. */
static void close_ends(struct timeline *timeline, uint64_t v)
{
    unsigned high = used_slots(timeline);
    for (unsigned i = 0; i < high; i++)
        close_end(&timeline->slots[i], v);
}

static void add_sample(struct timeline_sample *samples, uint64_t period, uint64_t ns)
{
    struct timeline_sample *sample = &samples[period % TIMELINE_SAMPLES];
    if (sample->period != period)
        *sample = (struct timeline_sample){.period = period};
    sample->ns += ns;
}

/* [from, to) was busy; only the periods that are still kept count. */
static void add_samples(struct timeline_sample *samples, uint64_t from, uint64_t to, uint64_t divisor)
{
    uint64_t last = to / SAMPLE_NS, first = from / SAMPLE_NS;
    if (last - first >= TIMELINE_SAMPLES)
        first = last - TIMELINE_SAMPLES + 1;
    for (uint64_t period = first; period <= last; period++) {
        uint64_t begin = period * SAMPLE_NS, end = begin + SAMPLE_NS;
        begin = begin < from ? from : begin;
        end = end > to ? to : end;
        if (end > begin)
            add_sample(samples, period, (end - begin) / divisor);
    }
}

/* `count` processes, those that end above `v`, were busy for [from, to). */
static void account(struct timeline *timeline, uint64_t v, unsigned count, uint64_t from, uint64_t to)
{
    unsigned high = used_slots(timeline);
    timeline->busy_ns += to - from;
    add_samples(timeline->samples, from, to, 1);
    for (unsigned i = 0; i < high; i++) {
        struct timeline_slot *slot = &timeline->slots[i];
        if (end_of(slot) <= v)
            continue;
        slot->got_ns += (to - from) / count;
        add_samples(slot->samples, from, to, count);
    }
}

void timeline_advance(struct timeline *timeline, uint64_t now)
{
    struct timeline_now at = *timeline_read(timeline);
    uint64_t nearest;
    close_ends(timeline, at.v);
    for (unsigned count; at.t < now && (count = find_active(timeline, at.v, &nearest)) > 0;) {
        uint64_t step = (now - at.t) / count;
        bool ends = nearest - at.v <= step;
        step = ends ? nearest - at.v : step;
        if (step == 0)
            break; /* less than a nanosecond each: the rest stays for the next advance */
        account(timeline, at.v, count, at.t, at.t + step * count);
        at.t += step * count;
        at.v += step;
        if (ends) {
            close_ends(timeline, at.v);
            mark(timeline, &at);
        }
    }
    if (at.t < now && find_active(timeline, at.v, &nearest) == 0)
        at.t = now;
    publish(timeline, &at);
}

void timeline_start(struct timeline *timeline, unsigned slot, uint64_t v)
{
    struct timeline_slot *own = &timeline->slots[slot];
    if (v <= end_of(own))
        return;
    if (used_slots(timeline) <= slot)
        atomic_store(&timeline->slot_high, slot + 1);
    if (!timeline_is_active(timeline, slot)) {
        struct timeline_now at = *timeline_read(timeline);
        mark(timeline, &at);
        publish(timeline, &at);
    }
    atomic_store(&own->end, v << 1);
}

bool timeline_extend(struct timeline_slot *slot, uint64_t from, uint64_t v)
{
    uint64_t expected = from << 1;
    return atomic_compare_exchange_strong(&slot->end, &expected, v << 1);
}

void timeline_forget(struct timeline *timeline, unsigned slot)
{
    struct timeline_now at = *timeline_read(timeline);
    if (!timeline_is_active(timeline, slot))
        return;
    mark(timeline, &at);
    publish(timeline, &at);
    atomic_store(&timeline->slots[slot].end, at.v << 1 | 1);
}

void timeline_reset(struct timeline *timeline, unsigned slot)
{
    timeline->slots[slot].got_ns = 0;
    memset(timeline->slots[slot].samples, 0, sizeof timeline->slots[slot].samples);
}

static uint64_t between(struct timeline_point low, struct timeline_point high, uint64_t v)
{
    return high.v == low.v ? low.t : low.t + (v - low.v) * ((high.t - low.t) / (high.v - low.v));
}

uint64_t timeline_reached(const struct timeline *timeline, uint64_t v)
{
    const struct timeline_now *at = timeline_read(timeline);
    if (v == 0)
        return 0; /* since ever */
    uint64_t first = at->points < TIMELINE_POINTS ? 0 : at->points - TIMELINE_POINTS, low = first, high = at->points;
    while (low < high) { /* the first point that is not before `v` */
        uint64_t middle = low + (high - low) / 2;
        if (timeline->ring[middle % TIMELINE_POINTS].v < v)
            low = middle + 1;
        else
            high = middle;
    }
    struct timeline_point next = {at->t, at->v};
    if (low < at->points)
        next = timeline->ring[low % TIMELINE_POINTS];
    if (low == first || next.v == v)
        return next.v == v || low < at->points ? next.t : at->t;
    return between(timeline->ring[(low - 1) % TIMELINE_POINTS], next, v);
}

uint64_t timeline_predict(const struct timeline *timeline, uint64_t v)
{
    struct timeline_now at = *timeline_read(timeline);
    uint64_t nearest;
    while (at.v < v) {
        unsigned count = find_active(timeline, at.v, &nearest);
        if (count == 0)
            return UINT64_MAX;
        uint64_t step = (nearest < v ? nearest : v) - at.v;
        at.t += step * count;
        at.v += step;
    }
    return at.t;
}

uint64_t timeline_busy(const struct timeline *timeline, const struct timeline_slot *slot, uint64_t now, unsigned periods)
{
    const struct timeline_sample *samples = slot == NULL ? timeline->samples : slot->samples;
    uint64_t current = now / SAMPLE_NS, sum = 0;
    for (unsigned i = 0; i < TIMELINE_SAMPLES; i++) {
        uint64_t age = current - samples[i].period;
        if (age >= 1 && age <= periods)
            sum += samples[i].ns;
    }
    return sum;
}
