/* Messages on stderr, only when LIBCUDA_LOG_LEVEL asks: unset = silence, 0 and 1 = errors, 2 = + warnings, 3 = + info, 4 = + debug. That a
 * card is not given because its limit cannot be read is written whatever it asks. */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

enum vgpu_log_level { VGPU_LOG_REFUSAL = -1, VGPU_LOG_ERROR = 0, VGPU_LOG_WARN = 2, VGPU_LOG_INFO = 3, VGPU_LOG_DEBUG = 4 };

/* Writes one line if the level asks for it. Takes no lock, allocates nothing, keeps errno. */
void vgpu_log_write(enum vgpu_log_level level, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

#define vgpu_log(level, ...) vgpu_log_write(level, __FILE__, __LINE__, __VA_ARGS__)

#endif
