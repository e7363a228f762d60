/* Where cuGetProcAddress's answers are bent: the driver's pointer of a hooked function becomes ours. */
#ifndef VCUDA_ROUTE_H
#define VCUDA_ROUTE_H

/* Our function for one of the driver's, or the pointer itself. */
void *route(void *pointer);

#endif
