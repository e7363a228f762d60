/* From words to values; every refusal names the word and what was wanted. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

static bool read_whole(const char *word, long *out)
{
    char *end;
    errno = 0;
    *out = strtol(word, &end, 10);
    return errno == 0 && end != word && *end == '\0';
}

bool take_gpu(struct call *call, int word, unsigned *slot)
{
    const struct shared_state *state = call->machine.state;
    const char *given = call->words[word];
    long position;
    if (read_whole(given, &position) && position >= 0 && position < (long)state->gpu_count) {
        *slot = (unsigned)position;
        return true;
    }
    for (*slot = 0; *slot < state->gpu_count; ++*slot) {
        if (strcmp(state_gpu(&call->machine, *slot)->facts.uuid, given) == 0)
            return true;
    }
    complain(WRONG, "there is no GPU %s: this machine has %u, named by position or UUID", given, state->gpu_count);
    return false;
}

bool take_whole(struct call *call, int word, const char *what, long low, long high, long *out)
{
    if (word < call->count && read_whole(call->words[word], out) && *out >= low && *out <= high)
        return true;
    complain(WRONG, "%s must be a whole number from %ld to %ld, not %s", what, low, high, word < call->count ? call->words[word] : "nothing");
    return false;
}

bool take_or_auto(struct call *call, int word, const char *what, long high, int32_t *out)
{
    long value = -1;
    bool given = word < call->count && strcmp(call->words[word], "auto") == 0;
    if (!given && !take_whole(call, word, what, 0, high, &value))
        return false;
    *out = (int32_t)value;
    return true;
}

bool take_choice(const char *given, const char *what, const char *const *names, unsigned *out)
{
    char all[256] = "";
    for (*out = 0; names[*out] != NULL; ++*out) {
        if (strcmp(names[*out], given) == 0)
            return true;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *out == 0 ? "" : ", ", names[*out]);
    }
    complain(WRONG, "%s must be one of %s, not %s", what, all, given);
    return false;
}
