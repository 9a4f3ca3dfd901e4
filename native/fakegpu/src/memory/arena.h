/* Addresses for device memory: real, readable memory of this process, of which pages exist only once they are touched. */
#ifndef FAKEGPU_ARENA_H
#define FAKEGPU_ARENA_H

#include <stdint.h>

/* An address range of at least `bytes`, or 0 when the address space is used up. Thread safe. */
uint64_t fg_arena_take(uint64_t bytes);

/* Gives a range back; `touched`: whether its pages may hold data. */
void fg_arena_give(uint64_t address, uint64_t bytes, int touched);

#endif
