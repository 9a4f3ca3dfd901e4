#include "module/jit_log.h"

#include <stdint.h>
#include <stdio.h>

/* CUjit_option */
enum { INFO_LOG_BUFFER = 3, INFO_LOG_BUFFER_SIZE_BYTES = 4, ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6 };

bool fg_jit_log_open(struct fg_jit_log *log, unsigned int count, const int *options, void **values)
{
    char *info = NULL;
    *log = (struct fg_jit_log){0};
    if (count > 0 && (options == NULL || values == NULL)) return false;
    for (unsigned int i = 0; i < count; i++) {
        if (options[i] == INFO_LOG_BUFFER) info = values[i];
        if (options[i] == ERROR_LOG_BUFFER) log->text = values[i];
        if (options[i] == ERROR_LOG_BUFFER_SIZE_BYTES) log->room = (size_t)(uintptr_t)values[i], log->length_at = &values[i];
        if (options[i] == INFO_LOG_BUFFER_SIZE_BYTES) {
            if (info != NULL && values[i] != NULL) *info = '\0';
            values[i] = NULL; /* nothing is written there */
        }
    }
    if (log->text != NULL && log->room > 0) *log->text = '\0';
    if (log->length_at != NULL) *log->length_at = NULL;
    return true;
}

void fg_jit_log_error(struct fg_jit_log *log, const char *text, const char *name)
{
    if (log->text == NULL || log->length_at == NULL || log->length + 1 >= log->room) return;
    const size_t room = log->room - log->length;
    const int written = snprintf(log->text + log->length, room, "error   : %s '%s'\n", text, name);
    log->length += (size_t)written < room ? (size_t)written : room - 1;
    *log->length_at = (void *)(uintptr_t)log->length;
}
