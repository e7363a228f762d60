/* See read_file.h. */
#include "read_file.h"

#include <stdio.h>
#include <stdlib.h>

CUresult read_whole_file(const char *path, char **out, size_t *size_out)
{
    size_t size = 0, got;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    char *text = malloc(1);
    for (char *grown; text != NULL; text = grown) {
        enum { STEP = 1 << 16 };
        grown = realloc(text, size + STEP + 1);
        if (grown == NULL) {
            free(text);
            text = NULL;
            break;
        }
        got = fread(grown + size, 1, STEP, file);
        size += got;
        grown[size] = '\0';
        if (got < STEP) {
            text = grown;
            break;
        }
    }
    fclose(file);
    *out = text;
    *size_out = size;
    return text == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
