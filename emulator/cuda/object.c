/* See object.h. Ended objects wait in a list of their kind. */
#include "object.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lists = PTHREAD_MUTEX_INITIALIZER;
static struct object *ended[OBJECT_KINDS];
_Atomic uint64_t stale_handles;

__attribute__((visibility("default"))) uint64_t vcuda_emulator_stale_handles(void);

uint64_t vcuda_emulator_stale_handles(void)
{
    return stale_handles;
}

void *object_begin(enum object_kind kind, size_t size)
{
    pthread_mutex_lock(&lists);
    struct object *object = ended[kind];
    if (object != NULL)
        ended[kind] = object->next_ended;
    pthread_mutex_unlock(&lists);
    if (object == NULL)
        object = aligned_alloc(64, (size + 63) / 64 * 64);
    if (object == NULL)
        return NULL;
    memset(object, 0, size);
    object->mark = OBJECT_MARK;
    object->kind = kind;
    return object;
}

void object_end(void *handle)
{
    struct object *object = handle;
    object->mark = 0;
    pthread_mutex_lock(&lists);
    object->next_ended = ended[object->kind];
    ended[object->kind] = object;
    pthread_mutex_unlock(&lists);
}
