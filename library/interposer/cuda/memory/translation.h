/*
 * Whether NVML means this process by this process's own pid, and reports this process's memory under it.
 *
 * - In the initial pid namespace the numbers are the host's, and every driver is right.
 * - In another one, as in a container: the open kernel modules translate pids since 535.113.01 and hide who is not visible; before 565.57.01 they look
 *   up the memory in the wrong namespace (0, or a foreign process's), and in the right one since. Proprietary modules report the host's pids. So
 *   what /proc/driver/nvidia/version says decides, where it is there: open and 565.57.01 or newer.
 * - Where it is not (a sandboxed kernel, another driver) it shows in what NVML lists (held.c): a driver that does not translate must list this very
 *   process under its number on the host, and its neighbours under theirs. So while this process holds something on the device, a
 *   list of nothing but processes that live in our namespace, among them this one, is a translated one; a foreign process in it shows that it is not.
 * What is not certain is not used. In: /proc. Out: what is known without asking NVML.
 */
#ifndef VCUDA_MEMORY_TRANSLATION_H
#define VCUDA_MEMORY_TRANSLATION_H

enum pids {
    PIDS_UNCERTAIN,
    PIDS_OURS,      /* translated, or there is nothing to translate */
    PIDS_OTHERS,    /* not, or with the wrong memory */
};

enum pids translation_known(void);

/* By the content of that file: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build ..." */
enum pids translation_by_version(const char *text);

#endif
