/* See clients.h. Each process locks the byte whose number is its pid, so the kernel forgets the dead. */
#include "clients.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

static int open_file(const char *state_path, int flags)
{
    char path[STATE_PATH_SIZE + 16];
    snprintf(path, sizeof path, "%s.clients", state_path);
    return open(path, O_RDWR | O_CLOEXEC | flags, 0666);
}

int clients_join(const char *state_path)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = getpid(), .l_len = 1};
    int file = open_file(state_path, O_CREAT);
    if (file < 0)
        return -1;
    (void)!fchmod(file, 0666); /* despite the umask: all processes that reach the state may use it */
    (void)!fcntl(file, F_SETLK, &lock);
    return file;
}

void clients_leave(int client)
{
    if (client >= 0)
        close(client);
}

pid_t clients_next(const char *state_path, pid_t last)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = last + 1, .l_len = 0};
    int file = open_file(state_path, 0);
    bool found = file >= 0 && fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    clients_leave(file);
    return found ? (pid_t)lock.l_start : 0;
}
