/*
 * The layout of the state file: what every process of one emulated machine maps.
 *
 * Facts are written once, before the file has its name, and never change. What changes about a GPU (its status) exists twice: a
 * writer fills the copy that is not read and then publishes it by counting `version` up, so a process that is killed in
 * the middle leaves the old status standing, whole. See state.h for who may do what.
 *
 * Growth: a change to any structure here counts LAYOUT_VERSION up; a file of another version is refused. What a compiled profile
 * has too (gpu_facts, gpu_process, node_cpus) is repeated in sandbox/emulator_layout.py. The CUDA half has
 * a section of its own behind the GPU table (extension_*, cuda_section.h), and `room` in each GPU for counters that are changed by atomics alone.
 */
#ifndef VCUDA_EMULATOR_LAYOUT_H
#define VCUDA_EMULATOR_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define LAYOUT_MAGIC UINT64_C(0x454d554144554356) /* the file begins with "VCUDAUME" */

enum {
    LAYOUT_VERSION = 5,
    MAX_GPUS = 64,
    MAX_PROCESSES = 256,        /* on one GPU */
    MAX_LINKS = 18,             /* of one GPU, as NVML */
    MAX_SWITCHES = 32,
    MAX_NODES = 32,             /* NUMA nodes with a core list */
    MAX_CPUS = 2048,
    MAX_EVENTS = 256,           /* not yet read by the slowest reader; older ones are lost, as with the real driver */
    BUS_ID_SIZE = 24,           /* DDDDDDDD:BB:DD.F and its end */
    ROOM_WORDS = 512,
};

enum presence { PRESENT, LOST, REMOVED };

enum process_kind { PROCESS_COMPUTE, PROCESS_GRAPHICS, PROCESS_MPS };

enum driver_state { DRIVER_LOADED, DRIVER_UNLOADED, DRIVER_MISMATCH };

struct gpu_link {
    int32_t gpu;                /* position of the peer, -1: a switch */
    int32_t nvswitch;           /* number of the switch, -1: a GPU */
};

/* What the profile says about a GPU and nothing can change. */
struct gpu_facts {
    char name[96], uuid[48], serial[32], bus_id[BUS_ID_SIZE], part_number[32], vbios[32];
    uint32_t minor;
    int32_t numa;
    uint32_t domain, bus, device;
    uint32_t pci_id, pci_subsystem_id;
    uint64_t memory_mib, reserved_mib, bar1_mib;
    uint32_t capability_major, capability_minor;
    uint32_t brand;
    uint32_t cores, memory_bus_bits, pcie_generation, pcie_width;
    uint32_t power_limit_w, power_min_w, power_max_w, power_idle_w;
    uint32_t sm_clock_mhz, memory_clock_mhz;
    uint32_t fans, ecc, mig_capable;
    uint32_t link_version, link_count;
    struct gpu_link links[MAX_LINKS];
    uint8_t level[MAX_GPUS];    /* NVML's number of the common ancestor with each other GPU */
};

struct gpu_process {
    uint32_t pid, kind;
    uint64_t memory_mib;
    uint32_t sm, memory_util;
    uint64_t start_time;        /* of a process registered as live, in the kernel's ticks; 0: scripted, never checked */
    uint64_t pid_namespace;     /* inode of the namespace that `pid` belongs to */
    uint32_t outer_pid, spare;  /* in views that show CUDA processes, whose `pid` is 0 where it is not visible */
    char name[64];
};

/* What changes. Sizes are multiples of 8 so that it can be copied by words. */
struct gpu_status {
    uint32_t presence, wait_error;
    uint32_t compute_mode, persistence;
    uint32_t mig, mig_pending;
    uint32_t ecc, ecc_pending;
    int32_t gpu_util, memory_util;      /* -1: derived from the processes */
    int32_t temperature_c, power_w;     /* -1: derived from the utilisation */
    uint32_t power_limit_w;
    uint32_t live_util;                 /* in views that show CUDA processes: the utilisation with theirs, plus one; else 0 */
    uint64_t used_mib;                  /* in use, by no listed process */
    uint64_t ecc_errors[2][2];          /* [volatile, aggregate][corrected, uncorrected] */
    uint64_t energy_mj, energy_since_us;
    uint64_t process_count;
    struct gpu_process processes[MAX_PROCESSES];
};

struct shared_gpu {
    struct gpu_facts facts;
    _Alignas(64) _Atomic uint64_t version;      /* status[version & 1] is the one to read */
    struct gpu_status status[2];
    _Alignas(64) _Atomic uint64_t room[ROOM_WORDS]; /* the CUDA half's: zero until it writes */
};

struct shared_event {
    _Atomic uint64_t sequence;  /* 0: being written */
    _Atomic uint64_t type, data;
    _Atomic uint32_t gpu, spare;
};

struct node_cpus {
    int32_t numa, spare;
    uint64_t mask[MAX_CPUS / 64];
};

struct shared_state {
    uint64_t magic;
    uint32_t layout_version, header_size;
    uint64_t total_size, gpu_offset, gpu_stride, extension_offset, extension_size;
    uint64_t profile_hash;      /* of the profile's bytes */
    uint64_t created_us;
    char name[128], driver[80];
    uint32_t cuda;              /* 12040 for 12.4 */
    uint32_t gpu_count, node_count, switch_count;
    struct node_cpus nodes[MAX_NODES];
    char switches[MAX_SWITCHES][BUS_ID_SIZE];
    _Atomic uint32_t driver_state;
    _Atomic uint32_t driver_epoch;      /* counts every unload, mismatch and reset: sessions of an older epoch are stale */
    _Atomic uint32_t superseded;        /* another file took this one's name */
    _Atomic uint32_t doorbell;          /* futex: counts each time that a waiter for events should look */
    _Atomic uint64_t event_head;        /* events 1..head were published */
    struct shared_event events[MAX_EVENTS];
};

_Static_assert(sizeof(struct gpu_process) % 8 == 0, "processes are copied by words");
_Static_assert(sizeof(struct gpu_status) % 8 == 0, "a status is copied by words");
_Static_assert(_Alignof(struct gpu_status) == 8, "a status is copied by words");

#endif
