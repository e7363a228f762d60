/* See ptx.h. */
#include "ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_NS 10000.0

enum { TOKEN = 2 * PTX_NAME };

/* One word, number or sign at a time. Comments are white space, but for the cost directive, which the reader keeps. */
struct reader {
    const char *at;
    char token[TOKEN];          /* empty: the end */
    const char *directive;      /* the last one passed */
};

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.';
}

static void skip_comment(struct reader *reader)
{
    static const char mark[] = "vcuda-emulator:";
    bool line = reader->at[1] == '/';
    const char *end = strstr(reader->at + 2, line ? "\n" : "*/"), *found = strstr(reader->at, mark);
    if (found != NULL && (end == NULL || found < end))
        reader->directive = found + strlen(mark);
    reader->at = end == NULL ? reader->at + strlen(reader->at) : end + (line ? 1 : 2);
}

static void skip_blank(struct reader *reader)
{
    for (;;) {
        while (isspace((unsigned char)*reader->at))
            reader->at++;
        if (reader->at[0] != '/' || (reader->at[1] != '/' && reader->at[1] != '*'))
            return;
        skip_comment(reader);
    }
}

static void skip_text(struct reader *reader)
{
    for (reader->at++; *reader->at != '\0' && *reader->at != '"'; reader->at++)
        ;
    reader->at += *reader->at == '"';
}

/* False at the end. */
static bool next(struct reader *reader)
{
    size_t length = 0;
    skip_blank(reader);
    while (*reader->at == '"') {
        skip_text(reader);
        skip_blank(reader);
    }
    if (is_word(*reader->at)) {
        while (is_word(*reader->at)) {
            if (length < TOKEN - 1)
                reader->token[length++] = *reader->at;
            reader->at++;
        }
    } else if (*reader->at != '\0') {
        reader->token[length++] = *reader->at++;
    }
    reader->token[length] = '\0';
    return length > 0;
}

static bool is(const struct reader *reader, const char *word)
{
    return strcmp(reader->token, word) == 0;
}

static bool number(const struct reader *reader, uint64_t *out)
{
    char *end;
    *out = strtoull(reader->token, &end, 0);
    return isdigit((unsigned char)reader->token[0]) && *end == '\0';
}

/* Bytes of a type such as .u64 or .b8; 0: not a type. */
static unsigned type_size(const char *token)
{
    if (token[0] != '.' || strchr("usbf", token[1]) == NULL || token[1] == '\0')
        return 0;
    char *end;
    unsigned long bits = strtoul(token + 2, &end, 10);
    return *end == '\0' && (bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128) ? (unsigned)bits / 8 : 0;
}

/* `.param .align 8 .b8 name[16]` behind .param or .global: up to the token behind it. */
static bool read_variable(struct reader *reader, char *name, uint64_t *bytes, uint64_t *alignment)
{
    uint64_t given_alignment = 0, count = 1, factor;
    unsigned size = 0;
    name[0] = '\0';
    while (next(reader) && reader->token[0] == '.') {
        if (is(reader, ".align")) {
            if (!next(reader) || !number(reader, &given_alignment))
                return false;
        } else if (type_size(reader->token) != 0) {
            size = type_size(reader->token);
        }
    }
    if (size == 0 || !is_word(reader->token[0]) || strlen(reader->token) >= PTX_NAME)
        return false;
    strcpy(name, reader->token);
    next(reader);
    while (is(reader, "[")) {
        if (!next(reader) || (!is(reader, "]") && (!number(reader, &factor) || !next(reader) || !is(reader, "]"))))
            return false;
        count *= factor;
        next(reader);
    }
    *bytes = size * count;
    *alignment = given_alignment != 0 ? given_alignment : size;
    return true;
}

static bool read_parameters(struct reader *reader, struct ptx_entry *entry)
{
    char name[PTX_NAME];
    uint64_t bytes, alignment;
    next(reader);
    while (!is(reader, ")")) {
        if (!is(reader, ".param") || entry->parameter_count == PTX_PARAMETERS || !read_variable(reader, name, &bytes, &alignment))
            return false;
        uint64_t offset = (entry->parameter_bytes + alignment - 1) / alignment * alignment;
        if (offset + bytes > PTX_PARAMETER_BYTES)
            return false;
        entry->parameters[entry->parameter_count++] = (struct ptx_parameter){(uint32_t)offset, (uint32_t)bytes};
        entry->parameter_bytes = (unsigned)(offset + bytes);
        if (is(reader, ","))
            next(reader);
    }
    return true;
}

static bool skip_word(const char **at, const char *word)
{
    while (**at == ' ' || **at == '\t')
        (*at)++;
    if (strncmp(*at, word, strlen(word)) != 0)
        return false;
    *at += strlen(word);
    return true;
}

struct kernel_cost cost_by_default(void)
{
    const char *given = getenv("VCUDA_EMULATOR_KERNEL_NS");
    char *end = NULL;
    double ns = given == NULL ? DEFAULT_NS : strtod(given, &end);
    bool good = given == NULL || (*given != '\0' && *end == '\0' && ns >= 0);
    return (struct kernel_cost){.factor = good ? ns : DEFAULT_NS, .parameter = -1};
}

static void read_cost(const char *at, struct ptx_entry *entry)
{
    struct kernel_cost cost = {.parameter = -1};
    char *end;
    if (at == NULL || !skip_word(&at, "ns") || !skip_word(&at, "="))
        return;
    cost.factor = strtod(at, &end);
    at = end;
    if (skip_word(&at, "*") && skip_word(&at, "param")) {
        cost.parameter = (int)strtol(at, &end, 10);
        at = end;
    }
    if (skip_word(&at, "+")) {
        cost.constant_ns = strtoull(at, &end, 10);
        at = end;
    }
    cost.per_thread = skip_word(&at, "per thread");
    cost.width = skip_word(&at, "wide") ? WIDTH_WIDE : skip_word(&at, "narrow") ? WIDTH_NARROW : WIDTH_BY_THREADS;
    if (skip_word(&at, "ranks") && skip_word(&at, "="))
        cost.ranks = (unsigned)strtoul(at, &end, 10);
    if (cost.parameter < (int)entry->parameter_count && cost.factor >= 0)
        entry->cost = cost;
}

static unsigned read_thread_limit(struct reader *reader)
{
    uint64_t product = 1, factor;
    while (next(reader) && (number(reader, &factor) || is(reader, ","))) {
        if (!is(reader, ","))
            product *= factor;
    }
    return product <= 1024 ? (unsigned)product : 1024;
}

static bool read_local(struct reader *reader, struct ptx_entry *entry)
{
    char name[PTX_NAME];
    uint64_t bytes, alignment;
    if (!read_variable(reader, name, &bytes, &alignment))
        return false;
    entry->local_bytes += bytes;
    return true;
}

/* Directives between the parameters and the body, then the body. */
static bool read_body(struct reader *reader, struct ptx_entry *entry)
{
    reader->directive = NULL;
    next(reader);
    while (!is(reader, "{")) {
        if (is(reader, ".maxntid") || is(reader, ".reqntid"))
            entry->max_threads = read_thread_limit(reader);
        else if (!next(reader))
            return false;
    }
    for (unsigned depth = 1; depth > 0;) {
        if (!next(reader))
            return false;
        if (is(reader, ".local") && !read_local(reader, entry))
            return false;
        depth += is(reader, "{");
        depth -= is(reader, "}");
    }
    read_cost(reader->directive, entry);
    return true;
}

static CUresult read_entry(struct reader *reader, struct ptx *out)
{
    struct ptx_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    entry->cost = cost_by_default();
    entry->next = out->entries;
    out->entries = entry;
    if (!next(reader) || !is_word(reader->token[0]) || strlen(reader->token) >= PTX_NAME)
        return CUDA_ERROR_INVALID_PTX;
    strcpy(entry->name, reader->token);
    const char *before = reader->at;
    if (next(reader) && is(reader, "(")) {
        if (!read_parameters(reader, entry))
            return CUDA_ERROR_INVALID_PTX;
    } else {
        reader->at = before;
    }
    return read_body(reader, entry) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

static CUresult read_global(struct reader *reader, struct ptx *out)
{
    struct ptx_global *global = calloc(1, sizeof *global);
    uint64_t alignment;
    if (global == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    global->next = out->globals;
    out->globals = global;
    return read_variable(reader, global->name, &global->bytes, &alignment) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

/* A function that is no kernel: nothing of it matters, but braces may be nested. */
static bool skip_function(struct reader *reader)
{
    unsigned depth = 0;
    while (next(reader)) {
        if (depth == 0 && is(reader, ";"))
            return true;
        depth += is(reader, "{");
        if (is(reader, "}") && --depth == 0)
            return true;
    }
    return false;
}

static bool read_head(struct reader *reader, struct ptx *out)
{
    char *end;
    if (!next(reader) || !is(reader, ".version") || !next(reader))
        return false;
    out->version = (unsigned)strtoul(reader->token, &end, 10) * 10;
    if (*end != '.')
        return false;
    out->version += (unsigned)strtoul(end + 1, NULL, 10);
    if (!next(reader) || !is(reader, ".target") || !next(reader) || strncmp(reader->token, "sm_", 3) != 0)
        return false;
    out->target = (unsigned)strtoul(reader->token + 3, NULL, 10);
    return true;
}

static CUresult read_all(struct reader *reader, struct ptx *out)
{
    while (next(reader)) {
        CUresult error = CUDA_SUCCESS;
        if (is(reader, ".entry"))
            error = read_entry(reader, out);
        else if (is(reader, ".global") || is(reader, ".const"))
            error = read_global(reader, out);
        else if (is(reader, ".func") && !skip_function(reader))
            error = CUDA_ERROR_INVALID_PTX;
        if (error != CUDA_SUCCESS)
            return error;
    }
    return CUDA_SUCCESS;
}

CUresult ptx_read(const char *text, unsigned newest, unsigned capability, struct ptx *out)
{
    struct reader reader = {.at = text};
    memset(out, 0, sizeof *out);
    if (!read_head(&reader, out))
        return CUDA_ERROR_INVALID_PTX;
    if (out->version > newest)
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (out->target > capability)
        return CUDA_ERROR_INVALID_PTX;
    return read_all(&reader, out);
}

void ptx_free(struct ptx *ptx)
{
    for (struct ptx_entry *at = ptx->entries, *following; at != NULL; at = following) {
        following = at->next;
        free(at);
    }
    for (struct ptx_global *at = ptx->globals, *following; at != NULL; at = following) {
        following = at->next;
        free(at);
    }
    memset(ptx, 0, sizeof *ptx);
}
