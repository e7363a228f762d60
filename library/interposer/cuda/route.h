/* Where cuGetProcAddress's answers are bent: the driver's pointer of a hooked function becomes ours. */
#ifndef VCUDA_ROUTE_H
#define VCUDA_ROUTE_H

#include <stdbool.h>

/* Our function for one of the driver's, or the pointer itself, also while the calling thread asks the driver for all of them. */
void *route(void *pointer);
bool route_is_asking(void);

/* Whether a driver's answer to a question for `version` is newer than the functions of this name that we stand in front of. */
bool route_is_unknown(const char *base, void *pointer, int version);

#endif
