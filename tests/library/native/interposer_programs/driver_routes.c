/*
 * Asks a driver's cuGetProcAddress, and ours in front of it, for every name in every version and for both kinds of streams.
 *
 *     driver_routes cuGetProcAddress_v2 < SYMBOLS      one of the driver's symbols a line
 *
 * libcuda.so.1 is ours and libcuda-real.so.1 the driver. Printed: `wrong ...` for each answer that is neither the driver's pointer of a function without a
 * hook nor our function for one with, `unreturned SYMBOL` for what cuGetProcAddress never gave, and at last how many questions and how many hooks there are.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 2048, NAME = 128, OLDEST = 0, NEWEST = 14000, STEP = 10, FLAGS = 3 };

struct function {
    char name[NAME];
    void *driver, *ours;
    bool returned;
};

struct answer {
    void *entry;
    int error, status;
};

typedef int first_interface(const char *symbol, void **entry, int version, uint64_t flags);
typedef int second_interface(const char *symbol, void **entry, int version, uint64_t flags, int *status);

static struct function functions[MOST];
static char bases[MOST][NAME];
static size_t function_count, base_count;
static bool second;

static struct answer ask(void *library, const char *symbol, int version, uint64_t flags)
{
    struct answer answer = {0};
    if (second)
        answer.error = ((second_interface *)dlsym(library, "cuGetProcAddress_v2"))(symbol, &answer.entry, version, flags, &answer.status);
    else
        answer.error = ((first_interface *)dlsym(library, "cuGetProcAddress"))(symbol, &answer.entry, version, flags);
    return answer;
}

/* What cuGetProcAddress calls it: without the suffixes of streams and versions. */
static void add_base(const char *symbol)
{
    char base[NAME];
    snprintf(base, sizeof base, "%s", symbol);
    size_t length = strlen(base);
    if (length > 5 && (strcmp(base + length - 5, "_ptsz") == 0 || strcmp(base + length - 5, "_ptds") == 0))
        base[length -= 5] = '\0';
    if (length > 3 && base[length - 3] == '_' && base[length - 2] == 'v')
        base[length - 3] = '\0';
    for (size_t i = 0; i < base_count; i++) {
        if (strcmp(bases[i], base) == 0)
            return;
    }
    memcpy(bases[base_count++], base, sizeof base);
}

static void read_symbols(void *ours, void *driver)
{
    char line[NAME];
    while (function_count < MOST && fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        struct function *function = &functions[function_count];
        function->driver = dlsym(driver, line);
        function->ours = dlsym(ours, line);
        add_base(line);
        memcpy(function->name, line, sizeof line);
        function_count += function->driver != NULL;
    }
}

static bool is_right(struct answer real, struct answer ours)
{
    bool hooked = false, found = false;
    if (real.error != ours.error || real.status != ours.status)
        return false;
    for (size_t i = 0; real.entry != NULL && i < function_count; i++) {
        struct function *function = &functions[i];
        if (function->driver != real.entry)
            continue;
        function->returned = true;
        hooked = hooked || function->ours != function->driver;
        found = found || (function->ours != function->driver && function->ours == ours.entry);
    }
    return hooked ? found : real.entry == ours.entry;
}

static size_t ask_for(const char *base, void *ours, void *driver)
{
    size_t asked = 0;
    for (uint64_t flags = 0; flags < FLAGS; flags++) {
        struct answer last[2] = {{.error = -1}, {.error = -1}};
        for (int version = OLDEST; version <= NEWEST; version += STEP, asked++) {
            struct answer now[2] = {ask(driver, base, version, flags), ask(ours, base, version, flags)};
            bool changed = memcmp(now, last, sizeof now) != 0;
            if (changed && !is_right(now[0], now[1]))
                printf("wrong %s for %d, flags %d: driver %d %d %p, ours %d %d %p\n", base, version, (int)flags, now[0].error, now[0].status,
                       now[0].entry, now[1].error, now[1].status, now[1].entry);
            memcpy(last, now, sizeof now);
        }
    }
    return asked;
}

int main(int count, char **words)
{
    void *ours = dlopen("libcuda.so.1", RTLD_NOW), *driver = dlopen("libcuda-real.so.1", RTLD_NOW);
    size_t asked = 0, hooked = 0;
    if (count != 2 || ours == NULL || driver == NULL)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    second = strcmp(words[1], "cuGetProcAddress_v2") == 0;
    read_symbols(ours, driver);
    for (size_t i = 0; i < base_count; i++)
        asked += ask_for(bases[i], ours, driver);
    for (size_t i = 0; i < function_count; i++) {
        hooked += functions[i].ours != functions[i].driver;
        if (!functions[i].returned)
            printf("unreturned %s\n", functions[i].name);
    }
    printf("asked %zu hooked %zu of %zu\n", asked, hooked, function_count);
    return 0;
}
