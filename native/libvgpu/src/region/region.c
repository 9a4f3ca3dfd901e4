#include "region/region.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "region/process.h"
#include "config/quota.h"
#include "region/region_account.h"
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

/* Blocks of the disk for a part of the file, so that a store into it cannot fail later. File systems that cannot
 * promise it (old NFS, FUSE) are believed. */
static int allocate(const struct vgpu_region_file *opened, size_t from, size_t bytes)
{
    int result;
    if (opened->file < 0) return 0;
    while ((result = fallocate(opened->file, 0, (off_t)from, (off_t)bytes)) != 0 && errno == EINTR) {
    }
    return result == 0 || errno == EOPNOTSUPP || errno == ENOSYS ? 0 : -errno;
}

/* So many slots at once: most containers never have more processes, and on a tmpfs this is memory. */
enum { SLOTS_AT_ONCE = 8 };

/* Slots 0..last of every bank that is in use, and what stands before them. */
static int allocate_slots(const struct vgpu_region_file *opened, int last)
{
    const size_t slots = ((size_t)last / SLOTS_AT_ONCE + 1) * SLOTS_AT_ONCE;
    int error = 0;
    for (int first = 0; error == 0 && (first == 0 || first < opened->device_count); first += VGPU_BANK_DEVICES)
        error = allocate(opened, (size_t)first / VGPU_BANK_DEVICES * VGPU_BANK_BYTES,
                         offsetof(struct vgpu_region, slots) + slots * sizeof(struct vgpu_region_slot));
    return error;
}

void vgpu_region_publish_devices(struct vgpu_region_file *opened, char (*uuid)[VGPU_UUID_BYTES], int count)
{
    if (count > opened->device_count) {
        opened->device_count = count;
        const int error = opened->region != NULL ? allocate_slots(opened, vgpu_region_process_count(opened->region)) : 0;
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
    if (error == 0) error = allocate_slots(opened, 0);
    /* The fields behind the slots. */
    if (error == 0)
        error = allocate(opened, offsetof(struct vgpu_region, process_count),
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

/* Writes nothing where nothing is: most devices are not there. */
static void clear(_Atomic uint64_t *cell)
{
    if (atomic_load_explicit(cell, memory_order_relaxed) != 0) atomic_store(cell, 0);
}

static void free_share(struct vgpu_region *region, struct vgpu_region_slot *slot, int device)
{
    struct vgpu_region_mem *mem = vgpu_slot_mem(slot, device);
    vgpu_region_end_share(region, slot, device);
    clear(vgpu_slot_exported(slot, device));
    clear(vgpu_slot_imported(slot, device));
    clear(&mem->data_bytes);
    clear(&mem->context_bytes);
    clear(&mem->module_bytes);
    clear(&mem->offset_bytes);
    clear(&vgpu_slot_bank(slot, device)->monitor_used_bytes[vgpu_place(device)]);
    clear(&vgpu_slot_util(slot, device)->sm_percent);
}

/* Shares first, totals second, pid last: a process that is killed here leaves totals too high and the slot still to be
 * swept. */
static void free_slot(struct vgpu_region *region, struct vgpu_region_slot *slot)
{
    atomic_store(&slot->status, VGPU_SLOT_EXITED);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) free_share(region, slot, i);
    atomic_store(&slot->host_pid, 0);
    atomic_store(&slot->pid_namespace, 0);
    atomic_store(vgpu_slot_begun(slot), 0);
    atomic_store(vgpu_slot_done(slot), 0);
    atomic_store(&slot->pid, 0);
}

/* Whether the slot's pid is one of another pid namespace: it means nothing here. */
static bool is_elsewhere(struct vgpu_region_slot *slot, uint32_t here)
{
    const uint32_t there = atomic_load(&slot->pid_namespace);
    return there != 0 && here != 0 && there != here;
}

static bool is_dead(const struct vgpu_region_file *opened, int at, uint32_t here)
{
    struct vgpu_region_slot *slot = &opened->region->slots[at];
    if (is_elsewhere(slot, here)) return !vgpu_region_slot_is_held(opened, at);
    return !vgpu_process_alive(atomic_load(&slot->pid), atomic_load(vgpu_slot_start_time(slot)));
}

/* Frees slots of the dead, and of this process's own image before an exec (same pid, same start time). A living slot never moves:
 * its owner holds a pointer to it. The count shrinks from its end. */
static void sweep(const struct vgpu_region_file *opened, bool own_too)
{
    struct vgpu_region *region = opened->region;
    const uint32_t here = vgpu_process_namespace();
    const pid_t self = getpid();
    int count = vgpu_region_process_count(region);
    for (int i = 0; i < count; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        const pid_t pid = atomic_load(&slot->pid);
        const bool own = pid == self && !is_elsewhere(slot, here);
        if (pid == 0 || (own && !own_too)) continue;
        if (own || is_dead(opened, i, here)) free_slot(region, slot);
    }
    while (count > 0 && atomic_load(&region->slots[count - 1].pid) == 0) count--;
    atomic_store(&region->process_count, count);
}

void vgpu_region_reclaim(struct vgpu_region_file *opened)
{
    sweep(opened, false);
    vgpu_region_settle_orphaned(opened->region, opened->device_count);
    vgpu_region_repair_totals(opened->region, opened->device_count);
}

static struct vgpu_region_slot *take_free_slot(struct vgpu_region_file *opened)
{
    struct vgpu_region *region = opened->region;
    const int count = vgpu_region_process_count(region);
    int at = 0;
    while (at < count && atomic_load(&region->slots[at].pid) != 0) at++;
    if (at == VGPU_MAX_PROCESSES) {
        vgpu_log(VGPU_LOG_ERROR, "all %d process slots of the container are taken", VGPU_MAX_PROCESSES);
        return NULL;
    }
    const int error = at >= SLOTS_AT_ONCE ? allocate_slots(opened, at) : 0;
    if (error != 0) {
        vgpu_log(VGPU_LOG_ERROR, "no room for process slot %d in the shared region %s: %s", at, opened->path, strerror(-error));
        return NULL;
    }
    struct vgpu_region_slot *slot = &region->slots[at];
    free_slot(region, slot); /* it is empty, unless somebody scribbled over a living one */
    atomic_store(vgpu_slot_start_time(slot), vgpu_process_start_time(getpid()));
    atomic_store(&slot->host_pid, vgpu_process_host_pid());
    atomic_store(&slot->pid_namespace, vgpu_process_namespace());
    vgpu_region_hold_slot(opened, at);
    atomic_store(&slot->status, VGPU_SLOT_RUNNING);
    atomic_store(&slot->pid, getpid());
    if (at == count) atomic_store(&region->process_count, count + 1);
    return slot;
}

struct vgpu_region_slot *vgpu_region_claim(struct vgpu_region_file *opened)
{
    if (vgpu_region_lock(opened) != 0) return NULL;
    sweep(opened, true);
    struct vgpu_region_slot *slot = take_free_slot(opened);
    vgpu_region_repair_totals(opened->region, opened->device_count);
    vgpu_region_unlock(opened);
    return slot;
}

void vgpu_region_leave(struct vgpu_region_file *opened, struct vgpu_region_slot *slot)
{
    if (vgpu_region_lock(opened) != 0) return; /* the next sweep finds it */
    if (atomic_load(&slot->pid) == getpid() && !is_elsewhere(slot, vgpu_process_namespace())) free_slot(opened->region, slot);
    sweep(opened, false);
    vgpu_region_unlock(opened);
}
