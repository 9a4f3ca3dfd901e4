/* Handles that live (handle.c): a stale or a stray one is recognised without being read. */
#ifndef FAKEGPU_DRIVER_HANDLE_H
#define FAKEGPU_DRIVER_HANDLE_H

#include <stdbool.h>

/* false: no memory. */
bool fg_handle_begins(const void *handle);
void fg_handle_ends(const void *handle);
bool fg_handle_lives(const void *handle);

#endif
