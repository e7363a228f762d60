/*
 * A strict JSON reader (RFC 8259) for untrusted text.
 *
 * In: bytes. Out: a tree whose every node knows its line and column, or one fault. Not here: what the document means.
 * Bounded by construction: size, depth, nodes and members per object have limits, and every string is valid UTF-8 without NUL.
 * Duplicate keys are refused, because JSON does not say which of the two counts.
 */
#ifndef VCUDA_EMULATOR_JSON_H
#define VCUDA_EMULATOR_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../fault.h"

enum {
    JSON_MAX_SIZE = 1 << 20,
    JSON_MAX_DEPTH = 16,
    JSON_MAX_NODES = 1 << 16,
    JSON_MAX_MEMBERS = 256,
};

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_kind kind;
    unsigned line, column;
    const char *key;            /* set on members of an object */
    unsigned key_line, key_column;
    bool truth;                 /* JSON_BOOL */
    bool whole;                 /* JSON_NUMBER: written without fraction or exponent, and it fits in 64 bits */
    int64_t number;             /* JSON_NUMBER where whole */
    const char *string;         /* JSON_STRING */
    unsigned count;             /* elements or members */
    struct json *first, *next;  /* children, in the order of the text */
};

struct json_document {
    char *text;                 /* decoded strings live in here */
    struct json *nodes;
    unsigned used;
    struct json *root;
};

/* False leaves a fault "LINE:COLUMN: cause" and nothing to free. */
bool json_parse(struct json_document *document, const char *bytes, size_t size, struct fault *fault);
void json_free(struct json_document *document);
/* NULL where there is no such member, or no object. */
const struct json *json_member(const struct json *object, const char *key);

#endif
