/* In: a format and its arguments. Out: the fault's text, cut where it does not fit. */
#include "fault.h"

#include <stdarg.h>
#include <stdio.h>

void fault_set(struct fault *fault, const char *format, ...)
{
    if (fault->text[0] != '\0')
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fault->text, sizeof fault->text, format, arguments);
    va_end(arguments);
}
