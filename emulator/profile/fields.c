/* See fields.h. */
#include "fields.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool source_fail(const struct source *source, unsigned line, unsigned column, const char *format, ...)
{
    char cause[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(cause, sizeof cause, format, arguments);
    va_end(arguments);
    make_plain(cause);
    fault_set(source->fault, "%.200s:%u:%u: %s", source->path, line, column, cause);
    return false;
}

static const char *kind_name(enum json_kind kind)
{
    static const char *const names[] = {"null", "true or false", "a number", "a text", "a list", "an object"};
    return names[kind];
}

bool node_is(const struct source *source, const struct json *node, enum json_kind kind, const char *what)
{
    if (node->kind == kind)
        return true;
    return NODE_FAIL(source, node, "%.64s must be %s, not %s", what, kind_name(kind), kind_name(node->kind));
}

bool node_whole(const struct source *source, const struct json *node, const char *what, int64_t low, int64_t high, int64_t *out)
{
    if (!node_is(source, node, JSON_NUMBER, what))
        return false;
    if (!node->whole || node->number < low || node->number > high)
        return NODE_FAIL(source, node, "%.64s must be a whole number from %" PRId64 " to %" PRId64, what, low, high);
    *out = node->number;
    return true;
}

static bool read_text(const struct source *source, const struct field *field, const struct json *node, char *to)
{
    if (!node_is(source, node, JSON_STRING, field->key))
        return false;
    if (node->string[0] == '\0' || strlen(node->string) >= field->size)
        return NODE_FAIL(source, node, "%s must have 1 to %zu bytes", field->key, field->size - 1);
    for (const char *at = node->string; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return NODE_FAIL(source, node, "%s must not hold control characters", field->key);
    }
    strcpy(to, node->string);
    return true;
}

static bool read_choice(const struct source *source, const struct field *field, const struct json *node, uint32_t *to)
{
    char names[256] = "";
    if (!node_is(source, node, JSON_STRING, field->key))
        return false;
    for (const struct choice *choice = field->choices; choice->name != NULL; choice++) {
        if (strcmp(choice->name, node->string) == 0) {
            *to = choice->value;
            return true;
        }
        if (choice != field->choices)
            strncat(names, ", ", sizeof names - strlen(names) - 1);
        strncat(names, choice->name, sizeof names - strlen(names) - 1);
    }
    return NODE_FAIL(source, node, "%s must be one of %s, not \"%.64s\"", field->key, names, node->string);
}

/* Digits only: strtoul alone would take signs and spaces. */
static const char *read_digits(const char *at, unsigned base, uint64_t most, uint64_t *out)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *start = at, *found;
    for (*out = 0; *at != '\0' && (found = strchr(digits, *at)) != NULL && (unsigned)((found - digits) % 16) < base; at++) {
        *out = *out * base + (uint64_t)((found - digits) % 16);
        if (*out > most)
            return NULL;
    }
    return at == start ? NULL : at;
}

static bool read_version(const struct source *source, const struct field *field, const struct json *node, uint32_t *to)
{
    uint64_t major, minor;
    if (!node_is(source, node, JSON_STRING, field->key))
        return false;
    const char *at = read_digits(node->string, 10, 999, &major);
    if (at == NULL || *at != '.' || (at = read_digits(at + 1, 10, 99, &minor)) == NULL || *at != '\0')
        return NODE_FAIL(source, node, "%s must be a version like \"12.4\"", field->key);
    to[0] = (uint32_t)major;
    to[1] = (uint32_t)minor;
    return true;
}

static bool read_hex(const struct source *source, const struct field *field, const struct json *node, uint32_t *to)
{
    uint64_t value;
    if (!node_is(source, node, JSON_STRING, field->key))
        return false;
    const char *text = node->string, *end = NULL;
    if (text[0] == '0' && text[1] == 'x')
        end = read_digits(text + 2, 16, UINT32_MAX, &value);
    if (end == NULL || *end != '\0')
        return NODE_FAIL(source, node, "%s must be a text like \"0x20B210DE\"", field->key);
    *to = (uint32_t)value;
    return true;
}

static bool read_whole(const struct source *source, const struct field *field, const struct json *node, void *to)
{
    int64_t value;
    if (!node_whole(source, node, field->key, field->low, field->high, &value))
        return false;
    if (field->size == sizeof(uint64_t))
        *(uint64_t *)to = (uint64_t)value;
    else
        *(uint32_t *)to = (uint32_t)value; /* a signed member has the same bits */
    return true;
}

static bool read_field(const struct source *source, const struct field *field, const struct json *node, void *target)
{
    void *to = (char *)target + field->offset;
    switch (field->type) {
    case FIELD_TEXT:
        return read_text(source, field, node, to);
    case FIELD_WHOLE:
        return read_whole(source, field, node, to);
    case FIELD_FLAG:
        *(uint32_t *)to = node->truth;
        return node_is(source, node, JSON_BOOL, field->key);
    case FIELD_CHOICE:
        return read_choice(source, field, node, to);
    case FIELD_VERSION:
        return read_version(source, field, node, to);
    case FIELD_HEX:
        return read_hex(source, field, node, to);
    case FIELD_NODE:
        *(const struct json **)to = node;
        return node_is(source, node, field->kind, field->key);
    }
    return false;
}

static const struct field *find_field(const struct field *table, const char *key)
{
    while (table != NULL && table->key != NULL && strcmp(table->key, key) != 0)
        table++;
    return table != NULL && table->key != NULL ? table : NULL;
}

bool fields_read(const struct source *source, const struct field *table, const struct field *others, const struct json *object, void *target)
{
    for (const struct json *member = object->first; member != NULL; member = member->next) {
        const struct field *field = find_field(table, member->key);
        if (field == NULL && find_field(others, member->key) == NULL)
            return source_fail(source, member->key_line, member->key_column, "unknown key \"%.64s\"", member->key);
        if (field != NULL && !read_field(source, field, member, target))
            return false;
    }
    return true;
}

bool fields_require(const struct source *source, const struct field *table, const struct json *object, const struct json *fallback)
{
    for (const struct field *field = table; field->key != NULL; field++) {
        if (field->required && json_member(object, field->key) == NULL && (fallback == NULL || json_member(fallback, field->key) == NULL))
            return NODE_FAIL(source, object, "the key \"%s\" is missing", field->key);
    }
    return true;
}
