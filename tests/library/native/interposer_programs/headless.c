/* A process whose first thread ends while another runs on: /proc calls it a zombie. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *wait_for_ever(void *unused)
{
    puts("headless");
    fflush(stdout);
    for (;;)
        pause();
    return unused;
}

int main(void)
{
    pthread_t other;
    if (pthread_create(&other, NULL, wait_for_ever, NULL) == 0)
        pthread_exit(NULL);
    return 1;
}
