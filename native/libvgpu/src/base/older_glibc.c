/* What a newer glibc gives another symbol version or keeps in another library, under its own names, hidden in this
 * library.
 *
 * A library of /etc/ld.so.preload that needs a symbol version which the container's glibc does not have ends every
 * program there. With these functions, and those of symbols/older_libdl.c, it needs GLIBC_2.17 and libc.so.6 alone,
 * whatever glibc it is built on (check-needs holds the result against that): stat and fstat became symbols in 2.33;
 * what came from libdl and libpthread moved to libc.so.6 in 2.34.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's struct stat is glibc's on machines of 64 bits. */
static_assert(sizeof(void *) == 8, "64 bits");

int fstat(int file, struct stat *status) { return (int)syscall(SYS_fstat, file, status); }

/* By way of open, as programs do that map paths (pathmap.c) see opens and no system calls of ours. */
int stat(const char *restrict path, struct stat *restrict status)
{
    const int file = open(path, O_PATH | O_CLOEXEC);
    if (file < 0) return -1;
    const int result = fstat(file, status);
    close(file);
    return result;
}

/* An archive beside libpthread has it before 2.34, with which programs name the library that goes with the handlers. */
int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library);
extern void *__dso_handle __attribute__((visibility("hidden")));
int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    return __register_atfork(before, parent, child, &__dso_handle);
}

/* As glibc lays it out since 2.21: the value, with the waiters above it, and whether other processes may wait (FUTEX_PRIVATE_FLAG). */
int sem_init(sem_t *semaphore, int shared, unsigned int value)
{
    const struct {
        uint64_t value;
        int32_t shared, padding;
    } fresh = {.value = value, .shared = shared != 0 ? 128 : 0};
    if (value > SEM_VALUE_MAX) {
        errno = EINVAL;
        return -1;
    }
    memcpy(semaphore, &fresh, sizeof fresh);
    return 0;
}
