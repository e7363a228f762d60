/*
 * What CUDA processes share, behind the GPU table of the state: who they are, and for each GPU its timeline and what each has of it.
 *
 * A process has one place for its whole life, and holds a record lock on the byte of that number in "<state>.pids". So each process can ask the kernel
 * whether it lives and what it is called in the caller's pid namespace, which is also what the driver's kernel module reports.
 * A word here is written by its own process, or under the GPU's lock by the process that finds it dead. Zero: never used.
 */
#ifndef VCUDA_EMULATOR_CUDA_SECTION_H
#define VCUDA_EMULATOR_CUDA_SECTION_H

#include "layout.h"
#include "timeline.h"

enum { CUDA_SLOTS = TIMELINE_SLOTS, CUDA_PLACES = 256, CUDA_EXCHANGES = 256 };

struct cuda_process {
    _Atomic uint64_t pid_namespace;     /* inode; 0: free */
    _Atomic uint64_t image;             /* the program that it is: another one after exec, under the same pid */
    _Atomic uint32_t pid;               /* as it calls itself */
    _Atomic uint32_t outer_pid;         /* as the outermost namespace that ever looked calls it; 0: as `pid` */
    char name[64];
};

struct cuda_use {
    _Atomic uint64_t bytes;             /* memory in use, contexts and modules included */
    _Atomic uint64_t contexts;
};

/* Where an interprocess event was last recorded. */
struct cuda_place {
    _Atomic uint64_t id;                /* 0: free */
    _Atomic uint64_t slot;              /* of the process whose event it is */
    _Atomic uint64_t v;
};

/* What kernels of several processes wait for together (cuda/exchange.h). */
struct cuda_exchange {
    _Atomic uint64_t identity;          /* of the job and the kernel's name; 0: free */
    _Atomic uint64_t begun;             /* kernels, ever */
};

struct cuda_gpu {
    _Alignas(64) _Atomic uint32_t owner;        /* the lock: the holder's slot + 1, highest bit: a process waits */
    _Atomic uint32_t exported;          /* 1: memory of it was exported once: files may hold some whose makers are gone */
    _Atomic uint64_t checked_ns;        /* time of the last search for dead processes */
    _Atomic uint64_t last_place;        /* counts the events that were ever given out */
    struct cuda_place places[CUDA_PLACES];
    struct cuda_use use[CUDA_SLOTS];
    struct timeline timeline;
};

struct cuda_section {
    _Atomic uint32_t slot_high;         /* slots from here on were never used */
    uint32_t spare;
    struct cuda_process processes[CUDA_SLOTS];
    struct cuda_exchange exchanges[CUDA_EXCHANGES];
    struct cuda_gpu gpus[MAX_GPUS];
};

#endif
