/* The text in which the driver reports what is wrong with code, where a caller of the JIT compiler asked for it. */
#ifndef FAKEGPU_DRIVER_JIT_LOG_H
#define FAKEGPU_DRIVER_JIT_LOG_H

#include <stdbool.h>
#include <stddef.h>

struct fg_jit_log {
    char *text; /* NULL: nobody asked */
    size_t room, length;
    void **length_at; /* where the caller reads how much was written */
};

/* Reads the buffers among the options (CUjit_option) and clears them; false: the arguments do not fit together. */
bool fg_jit_log_open(struct fg_jit_log *log, unsigned int count, const int *options, void **values);

/* Adds a line: the text, with the name behind it. */
void fg_jit_log_error(struct fg_jit_log *log, const char *text, const char *name);

#endif
