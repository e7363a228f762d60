/* The reader's grammar: values, objects, arrays, numbers. Strings are in json_string.c. */
#include "json.h"

#include <stdlib.h>
#include <string.h>

#include "json_reader.h"

static bool parse_value(struct reader *reader, struct json *node, unsigned depth);

bool reader_fail(struct reader *reader, const char *cause)
{
    fault_set(reader->fault, "%u:%u: %s", reader->line, (unsigned)(reader->at - reader->line_start) + 1, cause);
    return false;
}

static void skip_space(struct reader *reader)
{
    for (;; reader->at++) {
        char c = *reader->at;
        if (c == '\n') {
            reader->line++;
            reader->line_start = reader->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static bool expect(struct reader *reader, char c, const char *cause)
{
    skip_space(reader);
    if (*reader->at != c)
        return reader_fail(reader, cause);
    reader->at++;
    return true;
}

/* Nodes come from one block of fixed capacity, so that a tree never moves while it grows. */
static struct json *new_node(struct reader *reader)
{
    struct json_document *document = reader->document;
    if (document->used == reader->capacity) {
        reader_fail(reader, "too many values in one document");
        return NULL;
    }
    return &document->nodes[document->used++];
}

static bool parse_word(struct reader *reader, const char *word)
{
    size_t length = strlen(word);
    if (strncmp(reader->at, word, length) != 0)
        return reader_fail(reader, "expected a value");
    reader->at += length;
    return true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool parse_number(struct reader *reader, struct json *node)
{
    bool negative = *reader->at == '-';
    if (negative)
        reader->at++;
    if (!is_digit(*reader->at))
        return reader_fail(reader, "expected a digit");
    if (*reader->at == '0' && is_digit(reader->at[1]))
        return reader_fail(reader, "a number must not start with 0");
    node->kind = JSON_NUMBER;
    node->whole = true;
    for (; is_digit(*reader->at); reader->at++) {
        int64_t digit = *reader->at - '0';
        if (__builtin_mul_overflow(node->number, 10, &node->number) ||
            __builtin_add_overflow(node->number, negative ? -digit : digit, &node->number))
            node->whole = false;
    }
    if (*reader->at == '.') {
        node->whole = false;
        if (!is_digit(*++reader->at))
            return reader_fail(reader, "expected a digit after the point");
        while (is_digit(*reader->at))
            reader->at++;
    }
    if (*reader->at == 'e' || *reader->at == 'E') {
        node->whole = false;
        reader->at++;
        if (*reader->at == '+' || *reader->at == '-')
            reader->at++;
        if (!is_digit(*reader->at))
            return reader_fail(reader, "expected a digit in the exponent");
        while (is_digit(*reader->at))
            reader->at++;
    }
    return true;
}

static bool parse_key(struct reader *reader, const struct json *object, struct json *member)
{
    skip_space(reader);
    member->key_line = reader->line;
    member->key_column = (unsigned)(reader->at - reader->line_start) + 1;
    if (*reader->at != '"')
        return reader_fail(reader, "expected a key in double quotes");
    if (!parse_string(reader, &member->key))
        return false;
    for (const struct json *other = object->first; other != NULL; other = other->next) {
        if (strcmp(other->key, member->key) == 0) {
            fault_set(reader->fault, "%u:%u: the key \"%.64s\" stands here twice (first in line %u)", member->key_line,
                      member->key_column, member->key, other->key_line);
            return false;
        }
    }
    return expect(reader, ':', "expected ':' after the key");
}

static bool parse_children(struct reader *reader, struct json *node, unsigned depth, char close)
{
    struct json **link = &node->first;
    reader->at++;
    skip_space(reader);
    if (*reader->at == close) {
        reader->at++;
        return true;
    }
    if (depth == JSON_MAX_DEPTH)
        return reader_fail(reader, "nested too deep");
    for (;;) {
        if (node->kind == JSON_OBJECT && node->count == JSON_MAX_MEMBERS)
            return reader_fail(reader, "too many members in one object");
        struct json *child = new_node(reader);
        if (child == NULL)
            return false;
        if (node->kind == JSON_OBJECT && !parse_key(reader, node, child))
            return false;
        if (!parse_value(reader, child, depth + 1))
            return false;
        *link = child;
        link = &child->next;
        node->count++;
        skip_space(reader);
        if (*reader->at == close) {
            reader->at++;
            return true;
        }
        if (!expect(reader, ',', node->kind == JSON_OBJECT ? "expected ',' or '}'" : "expected ',' or ']'"))
            return false;
    }
}

static bool parse_value(struct reader *reader, struct json *node, unsigned depth)
{
    skip_space(reader);
    node->line = reader->line;
    node->column = (unsigned)(reader->at - reader->line_start) + 1;
    switch (*reader->at) {
    case '{':
        node->kind = JSON_OBJECT;
        return parse_children(reader, node, depth, '}');
    case '[':
        node->kind = JSON_ARRAY;
        return parse_children(reader, node, depth, ']');
    case '"':
        node->kind = JSON_STRING;
        return parse_string(reader, &node->string);
    case 't':
    case 'f':
        node->kind = JSON_BOOL;
        node->truth = *reader->at == 't';
        return parse_word(reader, node->truth ? "true" : "false");
    case 'n':
        node->kind = JSON_NULL;
        return parse_word(reader, "null");
    case '\0':
        return reader_fail(reader, "the text ends where a value should stand");
    default:
        return parse_number(reader, node);
    }
}

static bool parse_document(struct reader *reader, size_t size)
{
    struct json_document *document = reader->document;
    if (memchr(document->text, '\0', size) != NULL)
        return reader_fail(reader, "the text holds a NUL byte");
    document->root = new_node(reader);
    if (document->root == NULL || !parse_value(reader, document->root, 0))
        return false;
    skip_space(reader);
    return *reader->at == '\0' || reader_fail(reader, "something follows the document");
}

/* Every value but the first costs at least two bytes of text, so the text's size bounds the nodes. */
static unsigned node_capacity(size_t size)
{
    size_t most = size / 2 + 1;
    return most < JSON_MAX_NODES ? (unsigned)most : JSON_MAX_NODES;
}

bool json_parse(struct json_document *document, const char *bytes, size_t size, struct fault *fault)
{
    memset(document, 0, sizeof *document);
    if (size > JSON_MAX_SIZE) {
        fault_set(fault, "1:1: the document is larger than %d bytes", JSON_MAX_SIZE);
        return false;
    }
    struct reader reader = {.document = document, .fault = fault, .line = 1, .capacity = node_capacity(size)};
    document->text = malloc(size + 1);
    document->nodes = calloc(reader.capacity, sizeof *document->nodes);
    bool done = false;
    if (document->text == NULL || document->nodes == NULL) {
        fault_set(fault, "1:1: out of memory");
    } else {
        memcpy(document->text, bytes, size);
        document->text[size] = '\0';
        reader.at = reader.line_start = document->text;
        done = parse_document(&reader, size);
    }
    if (!done)
        json_free(document);
    return done;
}

void json_free(struct json_document *document)
{
    free(document->text);
    free(document->nodes);
    memset(document, 0, sizeof *document);
}

const struct json *json_member(const struct json *object, const char *key)
{
    const struct json *member = object->kind == JSON_OBJECT ? object->first : NULL;
    while (member != NULL && strcmp(member->key, key) != 0)
        member = member->next;
    return member;
}
