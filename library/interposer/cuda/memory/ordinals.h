/*
 * Which of the driver's ordinals a position in the limits has, for calls that take an ordinal: noted when a context appears on the device.
 * In: both. Out: the ordinal, -1 where this process has had no context there.
 */
#ifndef VCUDA_MEMORY_ORDINALS_H
#define VCUDA_MEMORY_ORDINALS_H

void ordinals_note(unsigned index, int device);
int ordinals_get(unsigned index);
void ordinals_forget(void);

#endif
