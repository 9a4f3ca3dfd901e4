#include "driver/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/driver.h"

/* The last lines are kept; 25600 is from the documentation of cuLogsDumpToMemory. */
enum { LINES = 100, LINE_BYTES = 256, HIGHEST_DUMP_BYTES = 25600 };

struct CUlogsCallbackEntry_st {
    CUlogsCallback function;
    void *data;
    struct CUlogsCallbackEntry_st *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[LINES][LINE_BYTES];
static unsigned int line_count; /* ever; the iterator of a program is such a number */
static CUlogsCallbackHandle callbacks;
static pthread_rwlock_t calling = PTHREAD_RWLOCK_INITIALIZER; /* unregistering waits for a call that is under way */
static _Thread_local bool in_callback;

void fg_log(enum fg_log_level level, const char *format, ...)
{
    char text[LINE_BYTES - 64], line[LINE_BYTES], stamp[32];
    const time_t now = time(NULL);
    struct tm at;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    strftime(stamp, sizeof stamp, "%H:%M:%S", gmtime_r(&now, &at));
    const int length = snprintf(line, sizeof line, "[%s][%s] %s", stamp, level == FG_LOG_ERROR ? "E" : "W", text);
    pthread_mutex_lock(&lock);
    snprintf(lines[line_count++ % LINES], LINE_BYTES, "%s", line);
    pthread_mutex_unlock(&lock);
    if (in_callback) return;
    in_callback = true;
    pthread_rwlock_rdlock(&calling);
    for (CUlogsCallbackHandle at_entry = callbacks; at_entry != NULL; at_entry = at_entry->next)
        at_entry->function(at_entry->data, (int)level, line, (size_t)length);
    pthread_rwlock_unlock(&calling);
    in_callback = false;
}

CUresult cuLogsRegisterCallback(CUlogsCallback function, void *data, CUlogsCallbackHandle *handle)
{
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUlogsCallbackHandle made = malloc(sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&calling);
    *made = (struct CUlogsCallbackEntry_st){function, data, callbacks};
    callbacks = made;
    pthread_rwlock_unlock(&calling);
    if (handle != NULL) *handle = made;
    return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle)
{
    if (in_callback) return CUDA_ERROR_NOT_PERMITTED;
    pthread_rwlock_wrlock(&calling);
    CUlogsCallbackHandle *at = &callbacks;
    while (*at != NULL && *at != handle) at = &(*at)->next;
    CUlogsCallbackHandle found = *at;
    if (found != NULL) *at = found->next;
    pthread_rwlock_unlock(&calling);
    free(found);
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(unsigned int *iterator, unsigned int flags)
{
    if (iterator == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *iterator = line_count;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* The first line that is both kept and not before the iterator (NULL: all). With the lock. */
static unsigned int first_line(const unsigned int *iterator)
{
    const unsigned int oldest = line_count > LINES ? line_count - LINES : 0;
    return iterator != NULL && *iterator > oldest && *iterator <= line_count ? *iterator : oldest;
}

CUresult cuLogsDumpToFile(unsigned int *iterator, const char *path, unsigned int flags)
{
    if (path == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "we");
    if (file == NULL) return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_mutex_lock(&lock);
    for (unsigned int at = first_line(iterator); at < line_count; at++) fprintf(file, "%s\n", lines[at % LINES]);
    if (iterator != NULL) *iterator = line_count;
    pthread_mutex_unlock(&lock);
    const bool failed = ferror(file) != 0;
    return fclose(file) == 0 && !failed ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* The newest lines that fit with the final 0, behind a note if others do not; `bytes` then is what was written, without the 0. */
CUresult cuLogsDumpToMemory(unsigned int *iterator, char *buffer, size_t *bytes, unsigned int flags)
{
    static const char SHORTENED[] = "[older messages are left out]\n";
    if (buffer == NULL || bytes == NULL || *bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const size_t room = (*bytes < HIGHEST_DUMP_BYTES ? *bytes : HIGHEST_DUMP_BYTES) - 1;
    size_t needed = 0, written = 0;
    pthread_mutex_lock(&lock);
    const unsigned int oldest = first_line(iterator);
    unsigned int from = oldest;
    for (unsigned int at = oldest; at < line_count; at++) needed += strlen(lines[at % LINES]) + 1;
    const bool shortened = needed > room;
    for (; from < line_count && needed + (shortened ? sizeof SHORTENED - 1 : 0) > room; from++) needed -= strlen(lines[from % LINES]) + 1;
    const bool none_fits = shortened && from == line_count;
    buffer[0] = '\0';
    if (shortened && !none_fits) written = (size_t)sprintf(buffer, "%s", SHORTENED);
    for (unsigned int at = from; at < line_count; at++) written += (size_t)sprintf(buffer + written, "%s\n", lines[at % LINES]);
    if (iterator != NULL && !none_fits) *iterator = line_count;
    pthread_mutex_unlock(&lock);
    *bytes = written;
    return none_fits ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
