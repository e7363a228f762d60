/*
 * Memory of a GPU that somebody has by a descriptor though who made it has it no more: no process is charged for it, and it is in use.
 *
 * In: the files of exported memory (cuda/memory/shared_file.c makes them). Out: their bytes. Each is beside the state, in "<state>.memory", and begins with
 * "vmm-" and the GPU's position. Its maker has it while its second byte is locked, others reach it while its first byte is.
 */
#ifndef VCUDA_EMULATOR_EXPORTED_H
#define VCUDA_EMULATOR_EXPORTED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The last bytes of such a file are behind the memory's content. */
enum { EXPORTED_REACHED_BYTE = 0, EXPORTED_MAKER_BYTE = 1, EXPORTED_TRAILER = 4096 };

/* By any description but this one. */
bool exported_is_locked(int fd, off_t byte);
uint64_t exported_without_maker(const char *state_path, unsigned gpu);

#endif
