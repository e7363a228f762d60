/*
 * Pools; see pools.h. Records lie in pages that are never given back, so a pointer to one stays good; one lock over all of them, for some
 * instructions at a time. What began or was under way while the driver was asked may or may not be in its answer: the correction allows for it.
 * Of two readings at once the one that began later counts.
 */
#include "pools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "account.h"

/* So much may be charged as asked before the pool is read again: what a pool's reuse of its own memory may be charged too much. */
static const uint64_t UNREAD_BYTES = 16 << 20;

enum { AT_ONCE = 64 };

struct pool {
    const void *handle;     /* NULL: the record is free, or its pool is destroyed */
    bool in_use;
    unsigned device;
    uint64_t charged;       /* in the ledger for this pool */
    uint64_t reserved;      /* as last read */
    uint64_t unread;        /* charged since, as asked */
    uint64_t in_flight;     /* of which the driver has not answered */
    uint64_t live;          /* allocated and not freed */
    uint64_t begun;         /* ever */
    uint64_t readings, applied;     /* numbers of the last one that began, and that counted */
    unsigned users;         /* threads in the driver with the handle */
    unsigned holders;
    bool watched;
    struct pool *next;
};

/* What was known of a pool when the driver was asked. */
struct reading {
    const void *handle;
    uint64_t number, begun, in_flight;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unused_again = PTHREAD_COND_INITIALIZER;
static struct pool *pools;
static _Atomic bool any;

static struct pool *find(const void *handle)
{
    struct pool *pool = pools;

    while (pool != NULL && (!pool->in_use || pool->handle != handle))
        pool = pool->next;
    return pool;
}

static bool add_records(void)
{
    struct pool *more = mmap(NULL, AT_ONCE * sizeof(*more), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (more == MAP_FAILED)
        return false;
    for (unsigned i = 0; i < AT_ONCE; i++) {
        more[i].next = pools;
        pools = &more[i];
    }
    return true;
}

static struct pool *unused(void)
{
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (!pool->in_use)
            return pool;
    return add_records() ? pools : NULL;
}

struct pool *pools_of(const void *handle, unsigned device)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool == NULL && (pool = unused()) != NULL) {
        *pool = (struct pool){.handle = handle, .in_use = true, .device = device, .next = pool->next};
        atomic_store_explicit(&any, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return pool;
}

struct pool *pools_known(const void *handle, unsigned *device)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool != NULL)
        *device = pool->device;
    pthread_mutex_unlock(&lock);
    return pool;
}

static void charge_as(struct pool *pool, uint64_t bytes)
{
    if (bytes > pool->charged)
        account_record(pool->device, bytes - pool->charged);
    else if (bytes < pool->charged)
        account_uncharge(pool->device, pool->charged - bytes);
    pool->charged = bytes;
}

/* Of a destroyed pool there is nothing left to read: what is still allocated from it is what it holds. */
static void settle_destroyed(struct pool *pool)
{
    charge_as(pool, pool->live + pool->in_flight);
    if (pool->live == 0 && pool->in_flight == 0)
        pool->in_use = false;
}

void pools_begin(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->charged += bytes;
    pool->unread += bytes;
    pool->in_flight += bytes;
    pool->begun += bytes;
    pthread_mutex_unlock(&lock);
}

bool pools_succeed(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->in_flight -= bytes;
    pool->live += bytes;
    bool due = pool->handle != NULL && (pool->live > pool->reserved || pool->unread > UNREAD_BYTES);
    pthread_mutex_unlock(&lock);
    return due;
}

static uint64_t without(uint64_t all, uint64_t part)
{
    return all > part ? all - part : 0;
}

void pools_fail(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->in_flight -= bytes;
    pool->unread = without(pool->unread, bytes);
    charge_as(pool, without(pool->charged, bytes));
    if (pool->handle == NULL)
        settle_destroyed(pool);
    pthread_mutex_unlock(&lock);
}

void pools_freed(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->live = without(pool->live, bytes);
    if (pool->handle == NULL && pool->in_use)
        settle_destroyed(pool);
    pthread_mutex_unlock(&lock);
}

struct pool *pools_destroy_begin(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool != NULL)
        pool->handle = NULL;
    while (pool != NULL && pool->users != 0)
        pthread_cond_wait(&unused_again, &lock);
    pthread_mutex_unlock(&lock);
    return pool;
}

void pools_destroy_end(struct pool *pool, const void *handle, bool destroyed)
{
    pthread_mutex_lock(&lock);
    if (destroyed)
        settle_destroyed(pool);
    else
        pool->handle = handle;
    pthread_mutex_unlock(&lock);
}

static void begin_using(struct pool *pool)
{
    pool->users++;
}

static void end_using(struct pool *pool)
{
    if (--pool->users == 0)
        pthread_cond_broadcast(&unused_again);
}

/* Whether the reading contains what was under way nobody knows: the charge does, so it falls to the most that can be and no further. */
static void apply(struct pool *pool, const struct reading *reading, uint64_t reserved)
{
    uint64_t uncertain = reading->in_flight + (pool->begun - reading->begun), most = reserved + uncertain;

    if (most > pool->charged)
        most = pool->charged > reserved ? pool->charged : reserved;
    if (pool->holders != 0 && most < pool->charged)
        most = pool->charged;
    pool->reserved = reserved;
    pool->unread = uncertain;
    pool->applied = reading->number;
    charge_as(pool, most);
}

/* With the lock held, which is not while the driver is asked. */
static void read_unlocked(struct pool *pool, pools_reader *reader)
{
    struct reading reading = {pool->handle, ++pool->readings, pool->begun, pool->in_flight};
    uint64_t reserved;

    if (reading.handle == NULL)
        return;
    begin_using(pool);
    pthread_mutex_unlock(&lock);
    bool known = reader(reading.handle, &reserved);
    pthread_mutex_lock(&lock);
    end_using(pool);
    if (known && pool->handle == reading.handle && reading.number > pool->applied)
        apply(pool, &reading, reserved);
}

void pools_read(struct pool *pool, pools_reader *reader)
{
    pthread_mutex_lock(&lock);
    read_unlocked(pool, reader);
    pthread_mutex_unlock(&lock);
}

void pools_read_device(int device, pools_reader *reader)
{
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->in_use && (pool->charged != 0 || pool->watched) && (device < 0 || pool->device == (unsigned)device))
            read_unlocked(pool, reader);
    pthread_mutex_unlock(&lock);
}

static void visit_unlocked(struct pool *pool, pools_visitor *visit)
{
    const void *handle = pool->handle;

    begin_using(pool);
    pthread_mutex_unlock(&lock);
    visit(handle);
    pthread_mutex_lock(&lock);
    end_using(pool);
}

void pools_visit(unsigned device, pools_visitor *visit)
{
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->in_use && pool->handle != NULL && pool->charged != 0 && pool->device == device && pool->holders == 0)
            visit_unlocked(pool, visit);
    pthread_mutex_unlock(&lock);
}

void pools_watch(struct pool *pool)
{
    pthread_mutex_lock(&lock);
    pool->watched = true;
    pthread_mutex_unlock(&lock);
}

void pools_hold(struct pool *pool)
{
    pthread_mutex_lock(&lock);
    pool->holders++;
    pthread_mutex_unlock(&lock);
}

void pools_let_go(struct pool *pool)
{
    pthread_mutex_lock(&lock);
    pool->holders--;
    pthread_mutex_unlock(&lock);
}

uint64_t pools_charged(struct pool *pool)
{
    pthread_mutex_lock(&lock);
    uint64_t charged = pool->charged;
    pthread_mutex_unlock(&lock);
    return charged;
}

void pools_raise(struct pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->charged += bytes;
    pthread_mutex_unlock(&lock);
}

bool pools_any(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

void pools_forget(void)
{
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        *pool = (struct pool){.next = pool->next};
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    unused_again = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    atomic_store(&any, false);
}
