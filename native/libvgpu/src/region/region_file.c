#include "region/region_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The lock is held for microseconds; half a millisecond between tries costs nothing, and 5 s without it is an owner
 * that is stopped. */
enum { TRIES = 10000, PAUSE_NS = 500000 };
/* Every user of the container shares the file, whatever umask its creator had; changing the umask itself would change
 * the host. */
enum { FILE_MODE = 0666 };

/* The directory is the tenant's: a link there would lead us to a file of somebody else's, a pipe would keep us
 * waiting. */
enum { HOW = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY };

static int open_or_make(const char *path)
{
    int file = open(path, HOW);
    if (file >= 0 || errno != ENOENT) return file;
    file = open(path, HOW | O_CREAT | O_EXCL, FILE_MODE);
    if (file >= 0)
        (void)fchmod(file, FILE_MODE); /* a file system without modes is no obstacle */
    else if (errno == EEXIST)
        file = open(path, HOW);
    return file;
}

static int beyond_standard_streams(int file)
{
    if (file < 0 || file > STDERR_FILENO) return file;
    const int moved = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(file);
    return moved;
}

int vgpu_region_open_file(const char *path)
{
    const int file = beyond_standard_streams(open_or_make(path));
    return file >= 0 ? file : -errno;
}

bool vgpu_region_file_is_ours(const struct vgpu_region_file *opened)
{
    struct stat status;
    return opened->file >= 0 && fstat(opened->file, &status) == 0 && status.st_dev == opened->device && status.st_ino == opened->inode;
}

static int open_again(struct vgpu_region_file *opened)
{
    const int file = beyond_standard_streams(open(opened->path, HOW));
    if (file < 0) return -errno;
    opened->file = file;
    if (vgpu_region_file_is_ours(opened)) return 0;
    close(file);
    return -ESTALE;
}

int vgpu_region_lock(struct vgpu_region_file *opened)
{
    if (opened->file < 0) return 0;
    if (!vgpu_region_file_is_ours(opened)) {
        const int error = open_again(opened);
        if (error != 0) return error;
    }
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    for (int i = 0; i < TRIES; i++) {
        if (fcntl(opened->file, F_SETLK, &byte) == 0) return 0;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) return -errno;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return -ETIMEDOUT;
}

void vgpu_region_unlock(const struct vgpu_region_file *opened)
{
    struct flock byte = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    if (opened->file >= 0) (void)fcntl(opened->file, F_SETLK, &byte); /* fails only for a bad descriptor, which was good a moment ago */
}

/* Behind the byte of the lock; a record lock needs no such byte in the file. */
static struct flock byte_of_slot(int slot)
{
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + slot, .l_len = 1};
}

void vgpu_region_hold_slot(const struct vgpu_region_file *opened, int slot)
{
    struct flock byte = byte_of_slot(slot);
    if (vgpu_region_file_is_ours(opened)) (void)fcntl(opened->file, F_SETLK, &byte);
}

bool vgpu_region_slot_is_held(const struct vgpu_region_file *opened, int slot)
{
    struct flock byte = byte_of_slot(slot);
    return opened->file < 0 || fcntl(opened->file, F_GETLK, &byte) != 0 || byte.l_type != F_UNLCK;
}

int vgpu_region_allocate(const struct vgpu_region_file *opened, size_t from, size_t bytes)
{
    int result;
    if (opened->file < 0) return 0;
    while ((result = fallocate(opened->file, 0, (off_t)from, (off_t)bytes)) != 0 && errno == EINTR) {
    }
    return result == 0 || errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -errno;
}

int vgpu_region_allocate_slots(const struct vgpu_region_file *opened, int last)
{
    const size_t slots = ((size_t)last / VGPU_SLOTS_AT_ONCE + 1) * VGPU_SLOTS_AT_ONCE;
    int error = 0;
    for (int first = 0; error == 0 && (first == 0 || first < opened->device_count); first += VGPU_BANK_DEVICES)
        error = vgpu_region_allocate(opened, (size_t)first / VGPU_BANK_DEVICES * VGPU_BANK_BYTES,
                                     offsetof(struct vgpu_region, slots) + slots * sizeof(struct vgpu_region_slot));
    return error;
}
