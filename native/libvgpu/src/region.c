#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "process.h"
#include "quota.h"
#include "region_account.h"
#include "region_lock.h"

static_assert(sizeof(sem_t) == 32, "HAMi's layout holds glibc semaphores");

/* Every user of the container shares the file, whatever umask its creator had; changing the umask itself would change the host. */
enum { FILE_MODE = 0666 };

static int open_file(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 || errno != ENOENT) return file;
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    if (file >= 0)
        (void)fchmod(file, FILE_MODE); /* a file system without modes is no obstacle */
    else if (errno == EEXIST)
        file = open(path, O_RDWR | O_CLOEXEC);
    return file;
}

void vgpu_region_publish_limits(struct vgpu_region *region, const struct vgpu_limit *limit, int count)
{
    for (int i = 0; i < count; i++) {
        const uint64_t bytes = limit[i].memory_bytes;
        atomic_store(&region->limit_bytes[i], bytes == VGPU_UNLIMITED ? 0 : bytes == 0 ? 1 : bytes);
        atomic_store(&region->sm_limit_percent[i], limit[i].core_percent);
    }
}

void vgpu_region_publish_devices(struct vgpu_region *region, char (*uuid)[VGPU_UUID_BYTES], int count)
{
    memcpy(region->uuid, uuid, sizeof region->uuid);
    atomic_store(&region->device_count, (uint64_t)count);
}

static void initialise(struct vgpu_region *region, struct vgpu_region_values *values)
{
    region->major_version = VGPU_REGION_MAJOR;
    region->minor_version = VGPU_REGION_MINOR;
    sem_init((sem_t *)region->sem, 1, 1);
    sem_init((sem_t *)region->post_init_sem, 1, 1);
    vgpu_region_publish_devices(region, values->uuid, values->device_count);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) atomic_store(&region->sm_limit_percent[i], 100);
    vgpu_region_publish_limits(region, values->limit, values->device_count);
    atomic_store(&region->utilization_switch, 1);
    atomic_store(&region->recent_kernel, 2);
    atomic_store(&region->priority, values->priority);
    atomic_store(&region->last_kernel_time_s, (uint64_t)time(NULL));
    atomic_store_explicit(&region->magic, VGPU_REGION_MAGIC, memory_order_release);
}

/* Makes the file as long as it must be and the content valid. With the file lock. */
static int prepare(int file, struct vgpu_region **mapped, struct vgpu_region_values *values)
{
    struct stat status;
    if (fstat(file, &status) != 0) return -errno;
    if (status.st_size < (off_t)sizeof(struct vgpu_region) && ftruncate(file, VGPU_REGION_FILE_BYTES) != 0) return -errno;
    struct vgpu_region *region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED) return -errno;
    if (atomic_load_explicit(&region->magic, memory_order_acquire) != VGPU_REGION_MAGIC) {
        /* Anything but zeroes is no region of ours; a new file is left sparse. */
        if (atomic_load(&region->magic) != 0) memset((void *)region, 0, sizeof *region);
        initialise(region, values);
    } else if (region->major_version != VGPU_REGION_MAJOR) {
        munmap(region, sizeof *region);
        return -EPROTO;
    } else {
        struct vgpu_region_file shared = {.region = region, .file = file};
        vgpu_region_reclaim(&shared);
        vgpu_region_publish_devices(region, values->uuid, values->device_count);
        /* Limits from the environment do not replace those under which others already run; the stricter of both counts. */
        if (values->limits_are_authoritative || vgpu_region_process_count(region) == 0)
            vgpu_region_publish_limits(region, values->limit, values->device_count);
    }
    *mapped = region;
    return 0;
}

static int open_shared(struct vgpu_region_file *opened, const char *path, struct vgpu_region_values *values)
{
    const int file = open_file(path);
    if (file < 0) return -errno;
    int error = vgpu_region_lock(file);
    if (error == 0) {
        error = prepare(file, &opened->region, values);
        vgpu_region_unlock(file);
    }
    if (error != 0)
        close(file);
    else
        opened->file = file;
    return error;
}

int vgpu_region_open(struct vgpu_region_file *opened, const char *path, struct vgpu_region_values *values)
{
    *opened = (struct vgpu_region_file){.file = -1};
    if (path != NULL) {
        const int error = open_shared(opened, path, values);
        if (error == 0) return 0;
        vgpu_log(VGPU_LOG_ERROR, "shared region %s: %s; the limits hold for this process alone", path, strerror(-error));
    }
    struct vgpu_region *region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) return -errno;
    initialise(region, values);
    opened->region = region;
    return 0;
}

/* Shares first, totals second, pid last: whoever is killed here leaves totals too high and the slot still to be swept. */
static void free_slot(struct vgpu_region *region, struct vgpu_region_slot *slot)
{
    atomic_store(&slot->status, VGPU_SLOT_EXITED);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        const uint64_t bytes = atomic_exchange(&slot->mem[i].total_bytes, 0);
        _Atomic uint64_t *total = vgpu_region_reserved(region, i);
        uint64_t old = atomic_load(total);
        while (!atomic_compare_exchange_weak(total, &old, vgpu_quota_subtract(old, bytes))) {
        }
        atomic_store(&slot->mem[i].data_bytes, 0);
        atomic_store(&slot->mem[i].context_bytes, 0);
        atomic_store(&slot->mem[i].module_bytes, 0);
        atomic_store(&slot->mem[i].offset_bytes, 0);
        atomic_store(&slot->monitor_used_bytes[i], 0);
        atomic_store(&slot->util[i].sm_percent, 0);
    }
    atomic_store(&slot->host_pid, 0);
    atomic_store(vgpu_slot_begun(slot), 0);
    atomic_store(vgpu_slot_done(slot), 0);
    atomic_store(&slot->pid, 0);
}

/* Frees slots of the dead, and of this process's own image before an exec (same pid, same start time). A living slot never moves:
 * its owner holds a pointer to it. The count shrinks from its end. */
static void sweep(struct vgpu_region *region, bool own_too)
{
    const pid_t self = getpid();
    int count = vgpu_region_process_count(region);
    for (int i = 0; i < count; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        const pid_t pid = atomic_load(&slot->pid);
        if (pid == 0 || (pid == self && !own_too)) continue;
        if (pid == self || !vgpu_process_alive(pid, atomic_load(vgpu_slot_start_time(slot)))) free_slot(region, slot);
    }
    while (count > 0 && atomic_load(&region->slots[count - 1].pid) == 0) count--;
    atomic_store(&region->process_count, count);
}

void vgpu_region_reclaim(struct vgpu_region_file *opened)
{
    sweep(opened->region, false);
    vgpu_region_repair_totals(opened->region);
}

static struct vgpu_region_slot *take_free_slot(struct vgpu_region *region)
{
    const int count = vgpu_region_process_count(region);
    int at = 0;
    while (at < count && atomic_load(&region->slots[at].pid) != 0) at++;
    if (at == VGPU_MAX_PROCESSES) return NULL;
    struct vgpu_region_slot *slot = &region->slots[at];
    free_slot(region, slot); /* it is empty, unless somebody scribbled over a living one */
    atomic_store(vgpu_slot_start_time(slot), vgpu_process_start_time(getpid()));
    atomic_store(&slot->host_pid, vgpu_process_host_pid());
    atomic_store(&slot->status, VGPU_SLOT_RUNNING);
    atomic_store(&slot->pid, getpid());
    if (at == count) atomic_store(&region->process_count, count + 1);
    return slot;
}

struct vgpu_region_slot *vgpu_region_claim(struct vgpu_region_file *opened)
{
    if (opened->file >= 0 && vgpu_region_lock(opened->file) != 0) return NULL;
    sweep(opened->region, true);
    struct vgpu_region_slot *slot = take_free_slot(opened->region);
    vgpu_region_repair_totals(opened->region);
    if (opened->file >= 0) vgpu_region_unlock(opened->file);
    if (slot == NULL) vgpu_log(VGPU_LOG_ERROR, "all %d process slots of the container are taken", VGPU_MAX_PROCESSES);
    return slot;
}

void vgpu_region_leave(struct vgpu_region_file *opened, struct vgpu_region_slot *slot)
{
    if (opened->file >= 0 && vgpu_region_lock(opened->file) != 0) return; /* the next sweep finds it */
    if (atomic_load(&slot->pid) == getpid()) free_slot(opened->region, slot);
    sweep(opened->region, false);
    if (opened->file >= 0) vgpu_region_unlock(opened->file);
}
