/* A driver that is slow: VCUDA_EMULATOR_NVML_MS=N. */
#ifndef VCUDA_EMULATOR_DELAY_H
#define VCUDA_EMULATOR_DELAY_H

/* Half of what nvmlInit and a list of processes take: called before and after they look. */
void half_delay(void);

#endif
