/* Addresses without memory behind them, for `instant_allocations`: what an allocation costs is then what stands before the driver. */
#ifndef FAKEGPU_INSTANT_H
#define FAKEGPU_INSTANT_H

#include <stdint.h>

/* An address that nobody has: the one given back last, else a new one. 0: no memory. Any thread. */
uint64_t fg_instant_take(void);

void fg_instant_give(uint64_t address);

#endif
