/* NVML's PCI structure from a GPU's facts; for identity.c, which has it, and nvlink.c. */
#ifndef VCUDA_EMULATOR_PCI_H
#define VCUDA_EMULATOR_PCI_H

#include "session.h"

void fill_pci(const struct gpu_facts *facts, nvmlPciInfo_t *pci);

#endif
