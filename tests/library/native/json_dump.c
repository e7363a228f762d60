/*
 * The JSON reader at the end of a pipe: documents come as a decimal length, a newline and so many bytes; each is answered by one
 * line, its canonical form or "!" and the fault. Strings are shown in hex, numbers that are not whole as "r".
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "profile/json.h"

static void dump_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++)
        printf("%02x", (unsigned char)*text);
}

static void dump(const struct json *node)
{
    switch (node->kind) {
    case JSON_NULL:
        putchar('n');
        return;
    case JSON_BOOL:
        putchar(node->truth ? 't' : 'f');
        return;
    case JSON_NUMBER:
        if (node->whole)
            printf("%" PRId64, node->number);
        else
            putchar('r');
        return;
    case JSON_STRING:
        dump_text(node->string);
        return;
    default:
        break;
    }
    unsigned count = 0;
    putchar(node->kind == JSON_ARRAY ? '[' : '{');
    for (const struct json *child = node->first; child != NULL; child = child->next, count++) {
        if (node->kind == JSON_OBJECT) {
            dump_text(child->key);
            putchar(':');
        }
        dump(child);
        putchar(',');
    }
    if (count != node->count)
        abort();
    putchar(node->kind == JSON_ARRAY ? ']' : '}');
}

int main(void)
{
    size_t size;
    while (scanf("%zu", &size) == 1 && getchar() == '\n') {
        char *bytes = malloc(size == 0 ? 1 : size); /* exactly as long: a read beyond the end is seen */
        struct json_document document;
        struct fault fault = {{0}, false};
        if (bytes == NULL || fread(bytes, 1, size, stdin) != size)
            return 1;
        if (json_parse(&document, bytes, size, &fault)) {
            dump(document.root);
            json_free(&document);
        } else {
            printf("!%s", fault.text);
        }
        free(bytes);
        putchar('\n');
        fflush(stdout);
    }
    return 0;
}
