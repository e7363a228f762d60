/*
 * Who owns a slot: the process that holds the lock on its first byte in the region's file.
 *
 * The kernel releases it with its holder, whatever ends it, in whichever pid namespace, and at exec, where pid and start time stay and the driver's
 * memory goes. It is an open file description's lock (F_OFD_SETLK), and the description lives in a mapping and not in a descriptor: a program that
 * closes every descriptor does not lose it, and a child of fork, which does not inherit the mapping (MADV_DONTFORK), does not keep it.
 * In: the region's file. Out: taken or not. A file system without such locks says SLOT_LOCK_NONE, and slots are judged by their pids alone.
 * Descriptors live for microseconds; what a fork inherits of them the child closes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

enum { MOST_OPEN = 4, PAGE = 4096 };    /* one that claims, one that clears, some that look at a lender */

static _Atomic uint32_t kept;           /* pages of ours */
static _Atomic int opened[MOST_OPEN] = {-1, -1, -1, -1};

static void forget(void)
{
    atomic_store(&kept, 0);
    for (int i = 0; i < MOST_OPEN; i++) {
        int file = atomic_exchange(&opened[i], -1);
        if (file >= 0)
            close(file);
    }
}

int slot_lock_open(void)
{
    vcuda_on_fork(forget);
    int file = region_open();
    for (int i = 0, none = -1; file >= 0 && i < MOST_OPEN; i++, none = -1) {
        if (atomic_compare_exchange_strong(&opened[i], &none, file))
            return file;
    }
    if (file >= 0)
        close(file);
    return -1;
}

void slot_lock_close(int file)
{
    for (int i = 0, held = file; file >= 0 && i < MOST_OPEN; i++, held = file) {
        if (atomic_compare_exchange_strong(&opened[i], &held, -1)) {
            close(file);
            return;
        }
    }
}

static struct flock first_byte(uint32_t slot, short type)
{
    size_t at = offsetof(struct region, slots) + slot * sizeof(struct region_slot);
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
}

static int change(int file, uint32_t slot, short type)
{
    struct flock lock = first_byte(slot, type);
    return fcntl(file, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

enum slot_lock slot_lock_try(int file, uint32_t slot)
{
    int error = file < 0 ? EBADF : change(file, slot, F_WRLCK);
    if (error == 0)
        return SLOT_LOCK_TAKEN;
    return error == EAGAIN || error == EACCES ? SLOT_LOCK_HELD : SLOT_LOCK_NONE;
}

void slot_lock_release(int file, uint32_t slot)
{
    change(file, slot, F_UNLCK);
}

/* Of another description than the one that is kept: that one is in its way. */
bool slot_lock_is_free(int file, uint32_t slot)
{
    struct flock lock = first_byte(slot, F_WRLCK);
    return file >= 0 && fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* The page is never touched: it holds the description. */
bool slot_lock_keep(int file)
{
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_NONE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return false;
    if (madvise(page, PAGE, MADV_DONTFORK) == 0) {
        atomic_fetch_add(&kept, 1);
        return true;
    }
    munmap(page, PAGE);
    return false;
}

/* Such a page is in the process's list of mappings, by whichever copy it was made (dlmopen). A program that was here before exec has left none. */
bool slot_lock_is_a_copys(void)
{
    char line[512];
    uint32_t pages = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        pages += strstr(line, " ---s ") != NULL && strstr(line, "/state/region") != NULL;
    if (maps != NULL)
        fclose(maps);
    return pages > atomic_load(&kept);
}
