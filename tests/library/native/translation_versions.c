/* What translation.c makes of the content of /proc/driver/nvidia/version, each argument one: a number of enum pids on a line each. */
#include <stdio.h>

#include "interposer/cuda/memory/translation.h"

int main(int count, char **texts)
{
    for (int i = 1; i < count; i++)
        printf("%d\n", (int)translation_by_version(texts[i]));
    return 0;
}
