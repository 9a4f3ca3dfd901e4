#include "region/region.h"

#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "config/quota.h"
#include "region/region_account.h"
#include "region/region_slots.h"
#include "region/region_file.h"

static_assert(sizeof(sem_t) == 32, "HAMi's layout holds glibc semaphores");

void vgpu_region_publish_limits(struct vgpu_region *region, const struct vgpu_limit *limit, int count)
{
    for (int i = 0; i < count; i++) {
        const uint64_t bytes = limit[i].memory_bytes;
        atomic_store(vgpu_region_limit_bytes(region, i), bytes == VGPU_UNLIMITED ? 0 : bytes == 0 ? 1 : bytes);
        atomic_store(vgpu_region_sm_limit_percent(region, i), limit[i].core_percent);
    }
}

void vgpu_region_publish_devices(struct vgpu_region_file *opened, char (*uuid)[VGPU_UUID_BYTES], int count)
{
    if (count > opened->device_count) {
        opened->device_count = count;
        const int error = opened->region != NULL ? vgpu_region_allocate_slots(opened, vgpu_region_process_count(opened->region)) : 0;
        if (error != 0) vgpu_log(VGPU_LOG_ERROR, "shared region %s: %s", opened->path, strerror(-error));
    }
    for (int first = 0; first < VGPU_MAX_DEVICES; first += VGPU_BANK_DEVICES) {
        struct vgpu_region *bank = vgpu_region_bank(opened->region, first);
        const int here = count < first ? 0 : count - first > VGPU_BANK_DEVICES ? VGPU_BANK_DEVICES : count - first;
        if (here == 0 && atomic_load(&bank->device_count) == 0) continue; /* leaves a hole in the file a hole */
        memcpy(bank->uuid, uuid + first, sizeof bank->uuid);
        atomic_store(&bank->device_count, (uint64_t)here);
    }
}

static void initialise(struct vgpu_region_file *opened, struct vgpu_region_values *values)
{
    struct vgpu_region *region = opened->region;
    region->major_version = VGPU_REGION_MAJOR;
    region->minor_version = VGPU_REGION_MINOR;
    sem_init((sem_t *)region->sem, 1, 1);
    sem_init((sem_t *)region->post_init_sem, 1, 1);
    vgpu_region_publish_devices(opened, values->uuid, values->device_count);
    for (int i = 0; i < VGPU_BANK_DEVICES; i++) atomic_store(&region->sm_limit_percent[i], 100);
    vgpu_region_publish_limits(region, values->limit, values->device_count);
    atomic_store(&region->utilization_switch, 1);
    atomic_store(&region->recent_kernel, 2);
    atomic_store(&region->priority, values->priority);
    atomic_store(&region->last_kernel_time_s, (uint64_t)time(NULL));
    atomic_store_explicit(&region->magic, VGPU_REGION_MAGIC, memory_order_release);
}

/* HAMi's library makes its file one byte longer than the structure before it writes anything. */
enum { HAMI_FILE_BYTES = sizeof(struct vgpu_region) + 1 };

/* Whether the file is a region, or one may be made of it. Whatever else lies there is somebody's: it is left alone. A
 * region that has been scribbled over is made again where the node names this as the place of regions. */
static bool may_be_region(const struct vgpu_region_file *opened, const struct stat *status, bool place_is_given)
{
    int32_t head[2]; /* magic, major version */
    if (!S_ISREG(status->st_mode)) return false;
    if (status->st_size == 0) return status->st_nlink == 1;
    if (pread(opened->file, head, sizeof head, 0) != sizeof head) return false;
    if (head[0] == VGPU_REGION_MAGIC) return head[1] == VGPU_REGION_MAJOR;
    /* Its maker was killed before it was done. */
    const bool long_enough = status->st_size == VGPU_REGION_FILE_BYTES || status->st_size == HAMI_FILE_BYTES;
    return long_enough && (head[0] == 0 || place_is_given);
}

/* Makes the file as long as it must be. Beyond the limit on file sizes the kernel would end the program (SIGXFSZ). */
static int grow(const struct vgpu_region_file *opened, const struct stat *status)
{
    struct rlimit limit;
    if (status->st_size >= VGPU_REGION_FILE_BYTES) return 0;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < VGPU_REGION_FILE_BYTES) return -EFBIG;
    return ftruncate(opened->file, VGPU_REGION_FILE_BYTES) == 0 ? 0 : -errno;
}

/* Makes the file as long as it must be and the content valid. With the file lock. */
static int prepare(struct vgpu_region_file *opened, struct vgpu_region_values *values)
{
    struct stat status;
    if (fstat(opened->file, &status) != 0) return -errno;
    if (!may_be_region(opened, &status, values->place_is_given)) return -EPROTO;
    int error = grow(opened, &status);
    opened->device_count = values->device_count;
    if (error == 0) error = vgpu_region_allocate_slots(opened, 0);
    /* The fields behind the slots. */
    if (error == 0)
        error = vgpu_region_allocate(opened, offsetof(struct vgpu_region, process_count),
                                     sizeof(struct vgpu_region) - offsetof(struct vgpu_region, process_count));
    if (error != 0) return error;
    struct vgpu_region *region = mmap(NULL, VGPU_REGION_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, opened->file, 0);
    if (region == MAP_FAILED) return -errno;
    /* The first touch of a page would read as much of the file as the disk reads ahead, milliseconds of it: pages are touched one by one.
     */
    (void)madvise(region, VGPU_REGION_FILE_BYTES, MADV_RANDOM);
    opened->region = region;
    if (atomic_load_explicit(&region->magic, memory_order_acquire) != VGPU_REGION_MAGIC) {
        /* The slots are swept, like those of the dead. */
        if (atomic_load(&region->magic) != 0) memset((void *)region, 0, offsetof(struct vgpu_region, slots));
        initialise(opened, values);
        vgpu_region_reclaim(opened);
    } else {
        vgpu_region_reclaim(opened);
        vgpu_region_publish_devices(opened, values->uuid, values->device_count);
        /* Limits from the environment do not replace those under which others already run; the stricter of both counts. */
        if (values->limits_are_authoritative || vgpu_region_process_count(region) == 0)
            vgpu_region_publish_limits(region, values->limit, values->device_count);
    }
    return 0;
}

static const char *reason(int error)
{
    switch (error) {
    case -EPROTO: return "neither an empty file nor a region of version 1";
    case -ELOOP: return "a symbolic link";
    default: return strerror(-error);
    }
}

static int open_shared(struct vgpu_region_file *opened, const char *path, struct vgpu_region_values *values)
{
    struct stat status;
    if (strlen(path) >= sizeof opened->path) return -ENAMETOOLONG;
    const int file = vgpu_region_open_file(path);
    if (file < 0) return file;
    opened->file = file;
    strcpy(opened->path, path);
    int error = fstat(file, &status) == 0 ? 0 : -errno;
    opened->device = status.st_dev;
    opened->inode = status.st_ino;
    if (error == 0) error = vgpu_region_lock(opened);
    if (error == 0) {
        error = prepare(opened, values);
        vgpu_region_unlock(opened);
    }
    if (error != 0) vgpu_region_close(opened);
    return error;
}

int vgpu_region_open(struct vgpu_region_file *opened, const char *path, struct vgpu_region_values *values)
{
    *opened = (struct vgpu_region_file){.file = -1};
    if (path != NULL) {
        const int error = open_shared(opened, path, values);
        if (error == 0) return 0;
        vgpu_log(VGPU_LOG_ERROR, "shared region %s: %s; the limits hold for this process alone", path, reason(error));
    }
    struct vgpu_region *region = mmap(NULL, VGPU_REGION_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) return -errno;
    opened->region = region;
    initialise(opened, values);
    return 0;
}

void vgpu_region_close(struct vgpu_region_file *opened)
{
    if (opened->region != NULL) munmap(opened->region, VGPU_REGION_FILE_BYTES);
    if (vgpu_region_file_is_ours(opened)) close(opened->file);
    *opened = (struct vgpu_region_file){.file = -1};
}
