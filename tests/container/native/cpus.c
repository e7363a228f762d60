/* Preloaded: the machine has 64 processors, so gRPC starts as many threads as on a GPU server. */
#include <dlfcn.h>
#include <unistd.h>

long sysconf(int name)
{
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");

    return name == _SC_NPROCESSORS_CONF || name == _SC_NPROCESSORS_ONLN ? 64 : real(name);
}
