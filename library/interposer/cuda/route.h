/* Where cuGetProcAddress's answers are bent: the driver's pointer of a hooked function becomes ours. */
#ifndef VCUDA_ROUTE_H
#define VCUDA_ROUTE_H

#include <stdbool.h>

/* Our function for one of the driver's, or the pointer itself, also while the calling thread asks the driver for all of them. */
void *route(void *pointer);
bool route_is_asking(void);

/* Whether a driver's answer is none of the functions that we know of this name, though we stand in front of those: a version newer than we are. */
bool route_is_unknown(const char *base, void *pointer);

#endif
