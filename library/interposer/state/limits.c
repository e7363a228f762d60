/*
 * Which limits hold now: read when the process attaches, which its first call does and in a forked child the first call there, and followed while the
 * files change.
 *
 * In: the limits files of the base directory. Out: `vcuda_limits_view`, one line for each thing that is wrong, calls to those who registered.
 * Attaching is no pthread_once: see once.h.
 * A file that cannot be used changes nothing where a good one was read before; else vcuda.config counts; else no device memory is given.
 * Devices keep their positions: the region and the activity rows go by them, so a file that moves one is refused.
 * Views lie in a ring of 64: a reader would have to hold one for 16 seconds of steady change before it is written again.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"
#include "once.h"

enum { VIEWS = 64, MAX_CALLBACKS = 8 };
static const uint64_t look_ns = UINT64_C(250000000);

struct mark {                       /* which file was read last */
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
};

/* Before anything was read: closed, for callers while attaching hangs. */
static const struct limits_view unread = {.origin = LIMITS_UNREADABLE};
static const struct limits_view absent = {.origin = LIMITS_ABSENT};
const struct limits_view *_Atomic vcuda_limits_view = &unread;
_Atomic uint32_t vcuda_attached;
static struct once attaching;

static struct limits_view ring[VIEWS];
static unsigned written;            /* guarded by `busy`, as all below */
static struct mark seen, seen_legacy;
static _Atomic bool failed;         /* a file is there and could not be read: the process is out of descriptors, say */
static _Atomic uint32_t busy;
static _Atomic uint64_t looked_ns;
static vcuda_limits_callback *_Atomic callbacks[MAX_CALLBACKS];

static struct mark mark_of(const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return (struct mark){0};
    return (struct mark){status.st_dev, status.st_ino, status.st_size, status.st_mtim};
}

static bool same_mark(const struct mark *one, const struct mark *other)
{
    return one->device == other->device && one->inode == other->inode && one->size == other->size &&
           one->changed.tv_sec == other->changed.tv_sec && one->changed.tv_nsec == other->changed.tv_nsec;
}

static bool keeps_positions(const struct limits_view *old, const struct limits_view *new)
{
    bool kept = new->device_count >= old->device_count;
    for (uint32_t i = 0; kept && i < old->device_count; i++)
        kept = strcmp(old->devices[i].uuid, new->devices[i].uuid) == 0;
    return kept;
}

static void publish(const struct limits_view *view)
{
    struct limits_view *place = &ring[written++ % VIEWS];
    *place = *view;
    atomic_store_explicit(&vcuda_limits_view, place, memory_order_release);
}

/* What happens now that `path` cannot be used; the legacy file's path is `legacy`. */
static void fall_back(const char *path, const struct limits_outcome *why, const char *legacy, struct limits_view *view)
{
    enum limits_origin held = atomic_load(&vcuda_limits_view)->origin;
    struct limits_outcome old = limits_read_legacy(legacy, view);
    atomic_store(&failed, why->unread || old.unread);
    if (held != LIMITS_FROM_FILE && old.reason[0] == '\0') {
        if (!why->missing)
            vcuda_warn(TOPIC_LIMITS, "%s %s: the limits of %s are in force", path, why->reason, legacy);
        publish(view);
    } else if (held == LIMITS_FROM_FILE || held == LIMITS_FROM_LEGACY) {
        vcuda_warn(TOPIC_LIMITS, "%s %s: the limits read before stay in force", path, why->reason);
    } else {
        vcuda_warn(TOPIC_LIMITS, "%s %s: no device memory is given until it %s, the GPU's time is not limited", path, why->reason,
                   why->unread ? "can be" : "is mended");
        publish(&(struct limits_view){.origin = LIMITS_UNREADABLE});
    }
}

static bool read_again(const char *path, const char *legacy)
{
    struct limits_view view;
    const struct limits_view *held = atomic_load(&vcuda_limits_view);
    struct limits_outcome outcome = limits_read_file(path, &view);
    atomic_store(&failed, false);
    if (outcome.reason[0] == '\0' && held->origin == LIMITS_FROM_FILE && !keeps_positions(held, &view))
        snprintf(outcome.reason, sizeof outcome.reason, "moves devices to other positions");
    if (outcome.reason[0] == '\0')
        publish(&view);
    else
        fall_back(path, &outcome, legacy, &view);
    return atomic_load(&vcuda_limits_view) != held;
}

/* True when another view was published. */
static bool look(void)
{
    char path[VCUDA_PATH], legacy[VCUDA_PATH];
    snprintf(path, sizeof path, "%s/limits", paths_base());
    snprintf(legacy, sizeof legacy, "%s/vcuda.config", paths_base());
    struct mark now = mark_of(path), now_legacy = mark_of(legacy);
    bool first = atomic_load(&vcuda_limits_view) == &unread;
    if (!first && !atomic_load(&failed) && same_mark(&now, &seen) && same_mark(&now_legacy, &seen_legacy))
        return false;
    seen = now;
    seen_legacy = now_legacy;
    return read_again(path, legacy);
}

static void load(void)
{
    atomic_store(&looked_ns, vcuda_now_ns());
    if (paths_base()[0] == '\0')
        atomic_store(&vcuda_limits_view, &absent);
    else
        look();
}

static void announce(void)
{
    const struct limits_view *view = atomic_load(&vcuda_limits_view);
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        vcuda_limits_callback *callback = atomic_load(&callbacks[i]);
        if (callback != NULL)
            callback(view);
    }
}

/* A good copy that the parent read stays good: the child looks again, and keeps it where it cannot. */
static void forget(void)
{
    atomic_store(&vcuda_attached, 0);
    atomic_store(&attaching.holder, 0);
    atomic_store(&busy, 0);
    seen = (struct mark){0};
}

static bool is_attached(void)
{
    return atomic_load_explicit(&vcuda_attached, memory_order_acquire) != 0;
}

void vcuda_attach_now(void)
{
    if (!once_enter(&attaching, is_attached))
        return;
    vcuda_on_fork(forget);
    paths_find();
    node_clock_look();
    load();
    atomic_store(&vcuda_attached, 1);
    once_leave(&attaching);
    announce();
}

/* Nothing is given out while nothing could be read: who is about to be refused looks at once. */
static bool is_due(uint64_t now)
{
    return now - atomic_load(&looked_ns) >= look_ns || (atomic_load(&failed) && vcuda_limits()->origin == LIMITS_UNREADABLE);
}

void vcuda_refresh(void)
{
    uint64_t now = vcuda_now_ns();
    uint32_t free = 0;
    int cancel_state;
    if (vcuda_limits()->origin == LIMITS_ABSENT || !is_due(now) || !atomic_compare_exchange_strong(&busy, &free, 1))
        return;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    atomic_store(&looked_ns, now);
    bool changed = look();
    atomic_store(&busy, 0);
    pthread_setcancelstate(cancel_state, NULL);
    if (changed)
        announce();
}

void vcuda_on_limits_change(vcuda_limits_callback *callback)
{
    for (int i = 0; i < MAX_CALLBACKS; i++) {
        vcuda_limits_callback *held = NULL;
        if (atomic_compare_exchange_strong(&callbacks[i], &held, callback) || held == callback)
            return;
    }
}

static bool same_digits(const char *one, const char *other)
{
    one += strspn(one, "GPUMI-");
    other += strspn(other, "GPUMI-");
    return strcmp(one, other) == 0;
}

int vcuda_index_of(const char *uuid)
{
    const struct limits_view *view = vcuda_limits();
    for (uint32_t i = 0; i < view->device_count; i++) {
        if (view->devices[i].uuid[0] == '\0' || same_digits(view->devices[i].uuid, uuid))
            return (int)i;
    }
    if (view->device_count == 0)
        return VCUDA_NOT_LIMITED;
    vcuda_warn(TOPIC_DEVICE, "%s/limits does not name %s: this container may not use that GPU", paths_base(), uuid);
    return VCUDA_UNNAMED;
}
