/*
 * Addresses of allocation nodes, counted: a graph, its clones and what was instantiated from them name the same one, and it ends with the last of them.
 * Naming is under driver_lock(); memory/ learns of the end in graph_address_sweep(), which takes the lock itself and is called without.
 */
#ifndef VCUDA_EMULATOR_GRAPH_ADDRESS_H
#define VCUDA_EMULATOR_GRAPH_ADDRESS_H

#include <cuda.h>
#include <stdbool.h>

bool graph_address_hold(CUdeviceptr address);       /* false: no memory */
void graph_address_let_go(CUdeviceptr address);
void graph_address_sweep(void);

#endif
