/* The reader's position in the text, shared by json.c and json_string.c only. */
#ifndef VCUDA_EMULATOR_JSON_READER_H
#define VCUDA_EMULATOR_JSON_READER_H

#include "json.h"

struct reader {
    struct json_document *document;
    struct fault *fault;
    char *at, *line_start;
    unsigned line, capacity;
};

bool reader_fail(struct reader *reader, const char *cause);
bool parse_string(struct reader *reader, const char **out);

#endif
