#include "region_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

/* The lock is held for microseconds; half a millisecond between tries costs nothing, and 5 s without it is an owner that is stopped. */
enum { TRIES = 10000, PAUSE_NS = 500000 };

int vgpu_region_lock(int file)
{
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    for (int i = 0; i < TRIES; i++) {
        if (fcntl(file, F_SETLK, &byte) == 0) return 0;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) return -errno;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return -ETIMEDOUT;
}

void vgpu_region_unlock(int file)
{
    struct flock byte = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    (void)fcntl(file, F_SETLK, &byte); /* fails only for a bad descriptor, which was good a moment ago */
}
