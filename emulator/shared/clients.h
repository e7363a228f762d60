/*
 * Which processes have NVML open: what keeps a driver from a reset of its GPUs and from being unloaded.
 *
 * In: the path of the state. Out: a lock on "<state>.clients" for as long as the process has NVML open; it ends with the process, however
 * that ends. Invariant: the process has the file open no longer than the lock, because closing any descriptor of it drops the lock.
 */
#ifndef VCUDA_EMULATOR_CLIENTS_H
#define VCUDA_EMULATOR_CLIENTS_H

#include <stdbool.h>
#include <sys/types.h>

/* The descriptor that holds this process's lock, for clients_leave(); -1: not to be had. */
int clients_join(const char *state_path);
void clients_leave(int client);
/* The next process after `last`, in the order of pids; 0: no more. Begin with 0. A process never finds itself. */
pid_t clients_next(const char *state_path, pid_t last);

#endif
