/*
 * Tables that say which keys an object may have and where each value goes.
 *
 * In: a JSON object and a table. Out: the target structure filled, or a fault at the offending key. An unknown key is a fault: a
 * misspelt one must not pass for a default.
 */
#ifndef VCUDA_EMULATOR_FIELDS_H
#define VCUDA_EMULATOR_FIELDS_H

#include "json.h"

enum field_type {
    FIELD_TEXT,     /* char[] */
    FIELD_WHOLE,    /* an integer of `size` bytes, low..high */
    FIELD_FLAG,     /* uint32_t 0 or 1 */
    FIELD_CHOICE,   /* uint32_t, by name */
    FIELD_VERSION,  /* "A.B" into two consecutive uint32_t */
    FIELD_HEX,      /* "0x..." into uint32_t */
    FIELD_NODE,     /* const struct json *: kept for later */
};

struct choice {
    const char *name;
    uint32_t value;
};

struct field {
    const char *key;
    enum field_type type;
    bool required;
    size_t offset, size;
    int64_t low, high;
    const struct choice *choices;   /* ends with a NULL name */
    enum json_kind kind;            /* FIELD_NODE */
};

#define MEMBER(structure, member) offsetof(structure, member), sizeof(((structure *)NULL)->member)

/* Where faults go: they begin with the file's name. */
struct source {
    const char *path;
    struct fault *fault;
};

__attribute__((format(printf, 4, 5))) bool source_fail(const struct source *source, unsigned line, unsigned column, const char *format, ...);
#define NODE_FAIL(source, node, ...) source_fail(source, (node)->line, (node)->column, __VA_ARGS__)

/* `object` may be checked against several tables: keys unknown to `table` are faults only where `others` is NULL or lacks them too. */
bool fields_read(const struct source *source, const struct field *table, const struct field *others, const struct json *object, void *target);
/* Every required key of the table stands in `object` or, where that is given, in `fallback`. */
bool fields_require(const struct source *source, const struct field *table, const struct json *object, const struct json *fallback);
bool node_is(const struct source *source, const struct json *node, enum json_kind kind, const char *what);
/* Whole numbers low..high. */
bool node_whole(const struct source *source, const struct json *node, const char *what, int64_t low, int64_t high, int64_t *out);

#endif
