/* The driver's log (cuLogs*): a line for what a program cannot see in a result alone. */
#ifndef FAKEGPU_DRIVER_LOG_H
#define FAKEGPU_DRIVER_LOG_H

/* CUlogLevel */
enum fg_log_level { FG_LOG_ERROR = 0, FG_LOG_WARNING = 1 };

/* Adds a line and calls the callbacks, in the calling thread. No lock of the driver's may be held. */
void fg_log(enum fg_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
