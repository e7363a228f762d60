/*
 * The address space of the emulated GPUs in this process.
 *
 * Device pointers come from ranges that are reserved once and that the CPU cannot touch, as with a real GPU. Their content lies in
 * a second range of the same shape, at a fixed distance, backed by the kernel page by page when something is first written: an
 * allocation costs no system call. Memory that the CPU may see as well (managed, on the host) has its content at the pointer
 * itself. In: sizes. Out: addresses in units of SPACE_UNIT. Not here: what is allocated (see physical.h, allocation.h); locking is
 * the caller's. Invariant: an address is given out once until it is given back, and content that was given back reads as zero.
 */
#ifndef VCUDA_EMULATOR_SPACE_H
#define VCUDA_EMULATOR_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPACE_UNIT (UINT64_C(2) << 20)  /* the granularity of physical memory, and of addresses */

enum space_zone { ZONE_HIGH, ZONE_LOW };    /* low: below 4 GiB, for the entry points that take 32-bit pointers */

/* 0: no addresses left. `size` and `alignment` are multiples of SPACE_UNIT. */
uint64_t space_take(enum space_zone zone, uint64_t size, uint64_t alignment);
bool space_take_at(uint64_t address, uint64_t size);
void space_give(uint64_t address, uint64_t size);

bool space_holds(uint64_t address);
void *space_content(uint64_t address);

/* The CPU may touch [address, address + size) itself from here on, and its content is there. */
bool space_expose(uint64_t address, uint64_t size);
/* The same, and it is the content of a file. */
bool space_expose_file(uint64_t address, uint64_t size, int fd);
void space_hide(uint64_t address, uint64_t size);

/* The content becomes that of a file, or what is private and zero again. */
bool space_map_file(uint64_t address, uint64_t size, int fd);
void space_unmap_file(uint64_t address, uint64_t size);
void space_discard(uint64_t address, uint64_t size);

#endif
