/*
 * A number for each of a few handles of the driver, for what it does not tell when it is needed.
 * In: handles that live. Out: their number. No lock: any thread, also after fork. Handles come back for others, so forget those that end.
 */
#ifndef VCUDA_HANDLES_H
#define VCUDA_HANDLES_H

#include <stdatomic.h>

struct handle {
    const void *_Atomic handle;         /* NULL: free */
    _Atomic int number;
    struct handle *next;
};

struct handles {
    struct handle *_Atomic first;
};

void handles_set(struct handles *handles, const void *handle, int number);
/* `otherwise` where it is not known. */
int handles_get(struct handles *handles, const void *handle, int otherwise);
void handles_forget(struct handles *handles, const void *handle);

#endif
