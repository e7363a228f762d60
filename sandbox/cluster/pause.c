/* The process that holds a pod's namespaces: it does nothing until it is told to end. */
#include <signal.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    for (;;)
        pause();
}
