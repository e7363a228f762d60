/*
 * The command `vcuda-emulator`: what each subcommand gets. In: words. Out: an exit status: 0 done, 1 cannot be done, 2 the words or
 * the profile are wrong; then one line on stderr says why.
 */
#ifndef VCUDA_EMULATOR_COMMAND_H
#define VCUDA_EMULATOR_COMMAND_H

#include "../shared/state.h"

enum { DONE = 0, FAILED = 1, WRONG = 2, MAX_WORDS = 8 };

struct call {
    struct state_paths paths;
    struct machine machine;         /* attached unless the subcommand says otherwise */
    const char *words[MAX_WORDS];   /* what follows the subcommand, options taken out */
    int count;
    bool json, live, silent, wait_error, underline;
    const char *type, *name;
};

typedef int subcommand(struct call *call);

subcommand command_init, command_show, command_topo, command_xid, command_lose, command_remove, command_recover,
    command_process, command_util, command_compute_mode, command_mig, command_memory, command_ecc, command_temperature,
    command_power, command_driver, command_clients, command_reset;

/* Print one line and return `status`. */
__attribute__((format(printf, 2, 3))) int complain(int status, const char *format, ...);
/* The words of a call; false has complained. */
bool take_gpu(struct call *call, int word, unsigned *slot);
bool take_whole(struct call *call, int word, const char *what, long low, long high, long *out);
/* A number, or -1 for the word "auto". */
bool take_or_auto(struct call *call, int word, const char *what, long high, int32_t *out);
/* One of `names` (ends with NULL). */
bool take_choice(const char *given, const char *what, const char *const *names, unsigned *out);

#endif
