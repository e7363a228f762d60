/*
 * The writers' lock of the state file.
 *
 * Between processes an open-file-description lock on the file's first byte, which the kernel drops with its holder; between threads of one process a
 * mutex. A forked child opens the file again, because a description shared with its parent would not exclude the parent.
 * One per process and library: attaching to another state moves it there.
 */
#ifndef VCUDA_EMULATOR_LOCK_H
#define VCUDA_EMULATOR_LOCK_H

#include <stdbool.h>

/* Takes over `fd` (open for writing); -1 closes. */
void lock_adopt(int fd);
/* False where the state is open read-only; then nothing is held. */
bool lock_take(void);
void lock_drop(void);

#endif
