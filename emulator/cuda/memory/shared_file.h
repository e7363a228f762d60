/*
 * The files behind shared memory: making, naming, locking and finding them. Knows no CUDA and no memory; see sharing.h for who uses
 * it and why. Invariant: a named file whose maker is gone is removed by the next process that makes or opens one.
 */
#ifndef VCUDA_EMULATOR_SHARED_FILE_H
#define VCUDA_EMULATOR_SHARED_FILE_H

#include <stdbool.h>
#include <stdint.h>

int shared_file_make(uint64_t maker, uint64_t number, uint64_t size);   /* -1: cannot be */
int shared_file_open(uint64_t maker, uint64_t number, uint64_t size);   /* -1: not there, or its maker is gone */
void shared_file_remove(uint64_t maker, uint64_t number);

/*
 * A file of exported memory of a GPU. Its maker lives while its second byte is locked; others reach it while its first byte is. So what is
 * reached and has no maker any more can be added up (shared/exported.h).
 */
int export_file_make(unsigned gpu, uint64_t maker, uint64_t number, uint64_t size);     /* -1: cannot be */
void export_file_remove(unsigned gpu, uint64_t maker, uint64_t number);
void export_files_sweep(void);          /* those that nobody has are removed */

int anonymous_file_make(uint64_t size);
/* The same file through a description of its own, so that its locks are its own; locked where `lock`. */
int file_reopen(int fd, bool lock);
bool file_lock(int fd);
bool file_is_locked(int fd);        /* by any description but this one */
bool file_identity(int fd, uint64_t *device, uint64_t *inode);

uint64_t random_word(void);

#endif
