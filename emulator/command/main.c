/* The table of subcommands, their options, and the way to each. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

enum attachment { ATTACHED, UNATTACHED };

static const struct entry {
    const char *name;
    subcommand *run;
    int least, most;
    enum attachment attachment;
    const char *words, *help;
} entries[] = {
    {"init", command_init, 0, 0, UNATTACHED, "", "make a fresh state from the profile; running sessions become stale"},
    {"show", command_show, 0, 0, ATTACHED, "[--json]", "the GPUs and what runs on them"},
    {"topo", command_topo, 0, 0, ATTACHED, "[--underline]", "the matrix of nvidia-smi topo -m"},
    {"xid", command_xid, 2, 2, ATTACHED, "GPU CODE", "deliver an XID event"},
    {"lose", command_lose, 1, 1, ATTACHED, "GPU [--silent] [--wait-error]", "fall off the bus (XID 79): calls say GPU_IS_LOST, the GPU is still counted"},
    {"remove", command_remove, 1, 1, ATTACHED, "GPU [--silent]", "as lose, and the next nvmlInit does not find it"},
    {"recover", command_recover, 1, 1, ATTACHED, "GPU", "bring a lost or removed GPU back"},
    {"process", command_process, 3, 6, ATTACHED, "add GPU PID MIB [SM% [MEM%]] [--live] [--type compute|graphics|mps] [--name NAME] | remove GPU PID",
     "put a process on a GPU or take it off; a live one leaves when the process ends"},
    {"util", command_util, 2, 3, ATTACHED, "GPU SM% MEM% | GPU auto", "set the utilisation; auto: what the processes add up to"},
    {"compute-mode", command_compute_mode, 2, 2, ATTACHED, "GPU default|exclusive_thread|prohibited|exclusive_process", "set the compute mode"},
    {"mig", command_mig, 2, 2, ATTACHED, "GPU on|off", "switch MIG mode"},
    {"memory", command_memory, 2, 2, ATTACHED, "GPU MIB", "memory in use by no listed process"},
    {"ecc", command_ecc, 3, 3, ATTACHED, "GPU corrected|uncorrected COUNT", "add memory errors, with their event"},
    {"temperature", command_temperature, 2, 2, ATTACHED, "GPU CELSIUS|auto", "set the temperature"},
    {"power", command_power, 2, 2, ATTACHED, "GPU WATTS|auto", "set the power draw"},
    {"clients", command_clients, 0, 0, ATTACHED, "", "the PIDs of the processes that have NVML open, one a line"},
    {"reset", command_reset, 1, 1, ATTACHED, "GPU", "as nvidia-smi --gpu-reset: refused while a process uses the GPU or has NVML open"},
    {"driver", command_driver, 1, 1, ATTACHED, "load|unload|mismatch", "take the driver away and bring it back"},
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

int complain(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("vcuda-emulator: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return status;
}

static int usage(void)
{
    puts("vcuda-emulator [--profile FILE] [--state FILE] COMMAND ...\n\n"
         "GPU is a position in the profile, from 0, or a UUID. FILEs default to VCUDA_EMULATOR_PROFILE and VCUDA_EMULATOR_STATE.\n");
    for (int i = 0; i < ENTRIES; i++)
        printf("  %s %s\n      %s\n", entries[i].name, entries[i].words, entries[i].help);
    return DONE;
}

static const struct entry *find_entry(const char *name)
{
    for (int i = 0; i < ENTRIES; i++) {
        if (strcmp(entries[i].name, name) == 0)
            return &entries[i];
    }
    return NULL;
}

/* Options may stand anywhere behind the subcommand. */
static bool take_option(struct call *call, char **words, int *at)
{
    const struct {
        const char *name;
        bool *flag;
        const char **text;
    } options[] = {
        {"--json", &call->json, NULL},   {"--live", &call->live, NULL},         {"--silent", &call->silent, NULL},
        {"--type", NULL, &call->type},   {"--wait-error", &call->wait_error, NULL}, {"--underline", &call->underline, NULL},
        {"--name", NULL, &call->name},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strcmp(words[*at], options[i].name) != 0)
            continue;
        if (options[i].flag != NULL)
            *options[i].flag = true;
        else if (words[*at + 1] == NULL)
            return false;
        else
            *options[i].text = words[++*at];
        return true;
    }
    return false;
}

static int read_words(struct call *call, const struct entry *entry, char **words)
{
    for (int at = 0; words[at] != NULL; at++) {
        if (strncmp(words[at], "--", 2) == 0) {
            if (!take_option(call, words, &at))
                return complain(WRONG, "%s: unknown or unfinished option %s", entry->name, words[at]);
        } else if (call->count == entry->most) {
            return complain(WRONG, "%s: one word too many: %s (usage: %s %s)", entry->name, words[at], entry->name, entry->words);
        } else {
            call->words[call->count++] = words[at];
        }
    }
    if (call->count < entry->least)
        return complain(WRONG, "%s: too few words (usage: %s %s)", entry->name, entry->name, entry->words);
    return DONE;
}

static int run(struct call *call, const struct entry *entry)
{
    struct fault fault = {{0}, false};
    if (!state_find_paths(&call->paths, &fault))
        return complain(WRONG, "%s", fault.text);
    if (entry->attachment == ATTACHED && !state_attach(&call->machine, &call->paths, &fault))
        return complain(WRONG, "%s", fault.text);
    int status = entry->run(call);
    state_detach(&call->machine);
    return status;
}

int main(int count, char **words)
{
    struct call call = {0};
    int at = 1;
    for (; at + 1 < count && words[at][0] == '-'; at += 2) {
        if (strcmp(words[at], "--profile") == 0)
            setenv("VCUDA_EMULATOR_PROFILE", words[at + 1], 1);
        else if (strcmp(words[at], "--state") == 0)
            setenv("VCUDA_EMULATOR_STATE", words[at + 1], 1);
        else
            break;
    }
    if (at >= count || strcmp(words[at], "--help") == 0 || strcmp(words[at], "help") == 0)
        return at >= count ? usage(), WRONG : usage();
    const struct entry *entry = find_entry(words[at]);
    if (entry == NULL)
        return complain(WRONG, "unknown command %s; vcuda-emulator help lists them", words[at]);
    int status = read_words(&call, entry, words + at + 1);
    return status != DONE ? status : run(&call, entry);
}
