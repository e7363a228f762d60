/* See handles.h. Entries are never freed, only used again. */
#include "handles.h"

#include <stdbool.h>
#include <stdlib.h>

static struct handle *find(struct handles *handles, const void *handle)
{
    struct handle *at = atomic_load_explicit(&handles->first, memory_order_acquire);
    while (at != NULL && atomic_load_explicit(&at->handle, memory_order_acquire) != handle)
        at = at->next;
    return at;
}

static bool take_free(struct handles *handles, const void *handle, int number)
{
    for (struct handle *at = find(handles, NULL); at != NULL; at = at->next) {
        const void *none = NULL;
        if (atomic_compare_exchange_strong(&at->handle, &none, handle)) {
            atomic_store(&at->number, number);
            return true;
        }
    }
    return false;
}

void handles_set(struct handles *handles, const void *handle, int number)
{
    struct handle *known = find(handles, handle);
    if (known != NULL)
        atomic_store(&known->number, number);
    if (known != NULL || take_free(handles, handle, number))
        return;
    struct handle *made = calloc(1, sizeof *made);
    if (made == NULL)
        return;
    atomic_store(&made->number, number);
    atomic_store(&made->handle, handle);
    made->next = atomic_load(&handles->first);
    while (!atomic_compare_exchange_weak(&handles->first, &made->next, made))
        ;
}

int handles_get(struct handles *handles, const void *handle, int otherwise)
{
    const struct handle *known = handle == NULL ? NULL : find(handles, handle);
    return known == NULL ? otherwise : atomic_load(&known->number);
}

void handles_forget(struct handles *handles, const void *handle)
{
    struct handle *known = handle == NULL ? NULL : find(handles, handle);
    if (known != NULL)
        atomic_store(&known->handle, NULL);
}
