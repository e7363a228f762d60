/*
 * One sentence about what went wrong, carried up to the code that prints it. The first fault wins: later ones are its consequences.
 */
#ifndef VCUDA_EMULATOR_FAULT_H
#define VCUDA_EMULATOR_FAULT_H

#include <stdbool.h>

struct fault {
    char text[768];
    bool absent;    /* nothing is wrong but that a file is not there */
};

__attribute__((format(printf, 2, 3))) void fault_set(struct fault *fault, const char *format, ...);

#endif
