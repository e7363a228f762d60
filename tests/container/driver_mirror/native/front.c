/* What stands in front of driver.c: one of its functions is answered here, and it reaches the driver's by the next name. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuInit(unsigned int flags)
{
    int (*real)(unsigned int) = (int (*)(unsigned int))dlsym(RTLD_NEXT, "cuInit");
    return real == 0 ? -1 : 100 + real(flags);
}
