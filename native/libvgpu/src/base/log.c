#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNKNOWN = -2, SILENT = -1 };

static int wanted_level(void)
{
    static atomic_int cached = UNKNOWN;
    int level = atomic_load_explicit(&cached, memory_order_relaxed);
    if (level == UNKNOWN) {
        const char *text = getenv("LIBCUDA_LOG_LEVEL");
        level = text != NULL && *text != '\0' ? atoi(text) : SILENT;
        if (level < SILENT) level = SILENT;
        atomic_store_explicit(&cached, level, memory_order_relaxed);
    }
    return level;
}

static const char *level_name(enum vgpu_log_level level)
{
    switch (level) {
    case VGPU_LOG_REFUSAL:
    case VGPU_LOG_ERROR: return "ERROR";
    case VGPU_LOG_WARN: return "Warn";
    case VGPU_LOG_INFO: return "Info";
    case VGPU_LOG_DEBUG: return "Debug";
    }
    return "?";
}

void vgpu_log_write(enum vgpu_log_level level, const char *file, int line, const char *format, ...)
{
    if ((int)level > wanted_level()) return;
    const int saved = errno;
    const char *slash = strrchr(file, '/');
    /* 512: a path and a sentence; a longer message is cut, never split over two writes. */
    char text[512];
    int used = snprintf(text, sizeof text, "[HAMi-core %s (pid:%d thread=%lu %s:%d)]: ", level_name(level), (int)getpid(),
                        (unsigned long)pthread_self(), slash != NULL ? slash + 1 : file, line);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    if (used > (int)sizeof text - 2) used = (int)sizeof text - 2;
    text[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, text, (size_t)used);
    (void)written; /* a closed stderr is no reason to disturb the host */
    errno = saved;
}
