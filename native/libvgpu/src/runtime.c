#include "runtime.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "config_source.h"
#include "devices.h"
#include "memory.h"
#include "log.h"
#include "process.h"
#include "quota.h"
#include "real.h"
#include "region.h"
#include "region_account.h"
#include "region_lock.h"

/* A changed limits file is seen by the first allocation after 10 ms: one stat per 10 ms is nothing, and people cannot tell. */
enum { LIMITS_LOOK_MS = 10 };
/* Dead processes of the container are looked for while asking how much is used, at most so often. */
enum { SWEEP_MS = 100 };

/* Zero means "not started". */
struct state {
    pthread_mutex_t lock; /* guards all that is not atomic */
    _Atomic bool ready;
    struct vgpu_region_file shared;
    _Atomic(struct vgpu_region_slot *) slot;
    pid_t pid; /* of whoever took the slot */
    uint64_t start_time;
    /* What the process knows of itself, whatever the region says: bytes it was promised (raised before the region is asked, lowered
     * after), bytes it holds (raised after, lowered before), and bytes of these that the driver took for itself. */
    _Atomic uint64_t promised[VGPU_MAX_DEVICES], held[VGPU_MAX_DEVICES], overhead[VGPU_MAX_DEVICES];
    struct vgpu_config config;
    struct vgpu_config_stamp stamp;
    _Atomic uint64_t limit_bytes[VGPU_MAX_DEVICES];
    _Atomic uint64_t unplaced_limit_bytes;
    _Atomic bool oversubscribe;
    _Atomic uint32_t core_percent[VGPU_MAX_DEVICES];
    _Atomic int64_t next_look_ms, next_core_look_ms, next_sweep_ms, next_launch_s;
    _Atomic enum vgpu_core_concern concern;
    int64_t launch_interval_s;
};

static _Atomic(struct state *) state_pages;
static struct vgpu_devices devices; /* survives fork */
static bool devices_discovered;
/* What the parent had mapped; its child lets go of it. */
static struct vgpu_region_file inherited = {.file = -1};
static _Thread_local bool inside;

/* Kernels before 4.14 cannot empty pages at fork. */
static void empty_state_in_child(void) { memset((void *)atomic_load(&state_pages), 0, sizeof(struct state)); }

static struct state *state(void)
{
    struct state *pages = atomic_load_explicit(&state_pages, memory_order_acquire);
    if (pages != NULL) return pages;
    struct state *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return NULL;
    if (!atomic_compare_exchange_strong(&state_pages, &pages, fresh)) {
        munmap(fresh, sizeof *fresh);
        return pages;
    }
    if (madvise(fresh, sizeof *fresh, MADV_WIPEONFORK) != 0) pthread_atfork(NULL, NULL, empty_state_in_child);
    return fresh;
}

static int64_t now_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now); /* coarse: about 5 ns, exact to 4 ms */
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* True for one caller per interval. */
static bool due(_Atomic int64_t *next, int64_t now, int64_t interval)
{
    int64_t at = atomic_load_explicit(next, memory_order_relaxed);
    return now >= at && atomic_compare_exchange_strong(next, &at, now + interval);
}

static void apply_limits(struct state *s, struct vgpu_limit limit[VGPU_MAX_DEVICES])
{
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        limit[i] = vgpu_config_limit(&s->config, devices.uuid[i], i);
        atomic_store(&s->limit_bytes[i], limit[i].memory_bytes);
        atomic_store(&s->core_percent[i], limit[i].core_percent);
    }
    atomic_store(&s->oversubscribe, s->config.oversubscribe);
    atomic_store(&s->unplaced_limit_bytes, vgpu_config_limit(&s->config, "", -1).memory_bytes);
}

static const char *region_path(const struct vgpu_config *config)
{
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path != NULL && *path != '\0') return path;
    /* HAMi's default, but only where there is something to share. */
    return vgpu_config_limits_anything(config) ? "/tmp/cudevshr.cache" : NULL;
}

static int number_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? atoi(text) : otherwise;
}

static void drop_inherited(void)
{
    if (inherited.region == NULL) return;
    munmap(inherited.region, sizeof *inherited.region);
    if (inherited.file >= 0) close(inherited.file);
    vgpu_memory_forget_all();
    inherited = (struct vgpu_region_file){.file = -1};
}

static int start_locked(struct state *s)
{
    drop_inherited();
    vgpu_config_load(VGPU_LIMITS_PATH, &s->config, &s->stamp);
    if (s->config.device_count != 0)
        vgpu_devices_list(&devices, &s->config);
    else if (!devices_discovered)
        vgpu_devices_discover(&devices);
    devices_discovered = true;
    struct vgpu_region_values values = {
        .device_count = atomic_load(&devices.count),
        .priority = number_of("CUDA_TASK_PRIORITY", 1),
        .limits_are_authoritative = s->config.source == VGPU_CONFIG_FILE,
    };
    memcpy(values.uuid, devices.uuid, sizeof values.uuid);
    apply_limits(s, values.limit);
    s->launch_interval_s = number_of("RECORD_KERNEL_INTERVAL", 1);
    const int error = vgpu_region_open(&s->shared, region_path(&s->config), &values);
    if (error != 0) return error;
    inherited = s->shared;
    for (int i = 0; i < values.device_count; i++)
        vgpu_log(VGPU_LOG_INFO, "device %d %s: %llu bytes, %u %% of the cores", i, values.uuid[i],
                 (unsigned long long)values.limit[i].memory_bytes, values.limit[i].core_percent);
    return 0;
}

bool vgpu_runtime_start(void)
{
    struct state *s = state();
    if (s == NULL || inside) return false;
    if (atomic_load_explicit(&s->ready, memory_order_acquire)) return true;
    inside = true; /* NVML and the driver are called below and may come back through our hooks */
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->ready)) {
        const int error = start_locked(s);
        if (error == 0)
            atomic_store_explicit(&s->ready, true, memory_order_release);
        else
            vgpu_log(VGPU_LOG_ERROR, "cannot start: %s", strerror(-error));
    }
    pthread_mutex_unlock(&s->lock);
    inside = false;
    return atomic_load(&s->ready);
}

static bool is_ours(const struct state *s, struct vgpu_region_slot *slot)
{
    return slot != NULL && atomic_load_explicit(&slot->pid, memory_order_relaxed) == s->pid;
}

/* The process's slot, taken if need be; taken anew, with what the process holds, if somebody has scribbled over it. */
static struct vgpu_region_slot *slot_of(struct state *s)
{
    struct vgpu_region_slot *slot = atomic_load_explicit(&s->slot, memory_order_acquire);
    if (is_ours(s, slot)) return slot;
    pthread_mutex_lock(&s->lock);
    slot = atomic_load(&s->slot);
    if (!is_ours(s, slot)) {
        s->pid = getpid();
        s->start_time = vgpu_process_start_time(s->pid);
        slot = vgpu_region_claim(&s->shared);
        for (int i = 0; slot != NULL && i < VGPU_MAX_DEVICES; i++)
            if (atomic_load(&s->held[i]) != 0) vgpu_region_charge(s->shared.region, slot, i, atomic_load(&s->held[i]));
        atomic_store_explicit(&s->slot, slot, memory_order_release);
    }
    pthread_mutex_unlock(&s->lock);
    return slot;
}

void vgpu_runtime_register(void)
{
    if (vgpu_runtime_start()) (void)slot_of(state());
}

/* What others wrote into the region does not change what this process holds. */
static void insist(struct state *s)
{
    struct vgpu_region_slot *slot = atomic_load(&s->slot) != NULL ? slot_of(s) : NULL;
    if (slot != NULL) vgpu_region_stand_by(s->shared.region, slot, s->start_time);
    for (int i = 0; slot != NULL && i < atomic_load(&devices.count); i++)
        vgpu_region_insist(s->shared.region, slot, i, atomic_load(&s->held[i]));
}

static void look_for_new_limits(struct state *s)
{
    if (!due(&s->next_look_ms, now_ms(CLOCK_MONOTONIC_COARSE), LIMITS_LOOK_MS)) return;
    insist(s);
    if (!vgpu_config_changed(VGPU_LIMITS_PATH, &s->stamp)) return;
    pthread_mutex_lock(&s->lock);
    struct vgpu_limit limit[VGPU_MAX_DEVICES];
    vgpu_config_load(VGPU_LIMITS_PATH, &s->config, &s->stamp);
    vgpu_devices_list(&devices, &s->config);
    apply_limits(s, limit);
    vgpu_region_publish_devices(s->shared.region, devices.uuid, atomic_load(&devices.count));
    vgpu_region_publish_limits(s->shared.region, limit, atomic_load(&devices.count));
    pthread_mutex_unlock(&s->lock);
    vgpu_log(VGPU_LOG_INFO, "limits read again");
}

int vgpu_runtime_cuda_device(CUdevice device) { return vgpu_devices_of_cuda(&devices, device); }

int vgpu_runtime_nvml_device(nvmlDevice_t device) { return vgpu_devices_of_nvml(&devices, device); }

static uint64_t limit_now(struct state *s, int index)
{
    look_for_new_limits(s);
    if (index == VGPU_DEVICE_UNPLACED) return atomic_load(&s->unplaced_limit_bytes);
    if (index < 0) return VGPU_UNLIMITED;
    return vgpu_quota_stricter(atomic_load_explicit(&s->limit_bytes[index], memory_order_relaxed),
                               atomic_load_explicit(&s->shared.region->limit_bytes[index], memory_order_relaxed));
}

uint64_t vgpu_runtime_limit(int index) { return vgpu_runtime_start() ? limit_now(state(), index) : VGPU_UNLIMITED; }

static void reclaim(struct state *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->shared.file < 0 || vgpu_region_lock(s->shared.file) == 0) {
        vgpu_region_reclaim(&s->shared);
        if (s->shared.file >= 0) vgpu_region_unlock(s->shared.file);
    }
    pthread_mutex_unlock(&s->lock);
}

uint64_t vgpu_runtime_used(int index)
{
    if (index < 0 || !vgpu_runtime_start()) return 0;
    struct state *s = state();
    if (due(&s->next_sweep_ms, now_ms(CLOCK_MONOTONIC_COARSE), SWEEP_MS)) reclaim(s);
    return vgpu_region_used(s->shared.region, index);
}

static bool reserve_in_region(struct state *s, int index, uint64_t bytes, uint64_t limit)
{
    struct vgpu_region_slot *slot = slot_of(s);
    if (slot == NULL) return false;
    if (vgpu_region_reserve(s->shared.region, slot, index, bytes, limit) == 0) return true;
    reclaim(s);
    return vgpu_region_reserve(s->shared.region, slot, index, bytes, limit) == 0;
}

int vgpu_runtime_reserve(int index, uint64_t bytes)
{
    if (!vgpu_runtime_start()) return inside ? 0 : -ENOMEM;
    struct state *s = state();
    const uint64_t limit = limit_now(s, index);
    if (index < 0) return vgpu_quota_fits(0, bytes, limit) ? 0 : -ENOMEM;
    /* Alone it never gets more than the limit, whatever the region says. */
    const uint64_t promised = atomic_fetch_add(&s->promised[index], bytes);
    if (vgpu_quota_fits(promised, bytes, limit) && reserve_in_region(s, index, bytes, limit)) {
        atomic_fetch_add(&s->held[index], bytes);
        return 0;
    }
    atomic_fetch_sub(&s->promised[index], bytes);
    /* The wording is HAMi's: scripts look for it. */
    vgpu_log(VGPU_LOG_ERROR, "Device %d OOM %llu / %llu", index,
             (unsigned long long)(vgpu_region_used(s->shared.region, index) + bytes), (unsigned long long)limit);
    return -ENOMEM;
}

void vgpu_runtime_charge(int index, uint64_t bytes)
{
    if (index < 0 || !vgpu_runtime_start()) return;
    struct state *s = state();
    struct vgpu_region_slot *slot = slot_of(s);
    if (slot == NULL) return;
    atomic_fetch_add(&s->promised[index], bytes);
    vgpu_region_charge(s->shared.region, slot, index, bytes);
    atomic_fetch_add(&s->held[index], bytes);
}

void vgpu_runtime_release(int index, uint64_t bytes)
{
    if (index < 0 || !vgpu_runtime_start()) return;
    struct state *s = state();
    if (atomic_load_explicit(&s->slot, memory_order_acquire) == NULL) return;
    struct vgpu_region_slot *slot = slot_of(s);
    atomic_fetch_sub(&s->held[index], bytes);
    if (slot != NULL) vgpu_region_release(s->shared.region, slot, index, bytes);
    atomic_fetch_sub(&s->promised[index], bytes);
}

bool vgpu_runtime_oversubscribes(void) { return vgpu_runtime_start() && atomic_load_explicit(&state()->oversubscribe, memory_order_relaxed); }

unsigned int vgpu_runtime_host_pid(void)
{
    if (!vgpu_runtime_start()) return 0;
    struct vgpu_region_slot *slot = slot_of(state());
    return slot != NULL ? (unsigned int)atomic_load(&slot->host_pid) : 0;
}

uint64_t vgpu_runtime_set_overhead(int index, uint64_t seen_bytes)
{
    if (index < 0 || !vgpu_runtime_start()) return 0;
    struct state *s = state();
    struct vgpu_region_slot *slot = slot_of(s);
    if (slot == NULL) return 0;
    pthread_mutex_lock(&s->lock);
    const uint64_t old = atomic_load(&s->overhead[index]), own = vgpu_quota_subtract(atomic_load(&s->held[index]), old);
    const uint64_t now = vgpu_quota_subtract(seen_bytes, own);
    atomic_store(&s->overhead[index], now);
    atomic_fetch_add(&s->promised[index], now - old); /* may wrap around: a difference below zero */
    if (now < old) atomic_fetch_sub(&s->held[index], old - now);
    vgpu_region_set_overhead(s->shared.region, slot, index, old, now);
    if (now > old) atomic_fetch_add(&s->held[index], now - old);
    pthread_mutex_unlock(&s->lock);
    return now;
}

static void note_launch(struct state *s)
{
    const int64_t now_s = now_ms(CLOCK_REALTIME_COARSE) / 1000;
    if (!due(&s->next_launch_s, now_s, s->launch_interval_s)) return;
    struct vgpu_region *region = s->shared.region;
    atomic_store(&region->last_kernel_time_s, (uint64_t)now_s);
    /* Negative: a monitor has asked this container to wait for another; that is the monitor's to lift. */
    if (atomic_load(&region->recent_kernel) >= 0) atomic_store(&region->recent_kernel, 2);
}

/* The container's share of a device. Limits that the tenant could have written into the region only count when they are lower; the switch
 * of a monitor that knows nothing of our limits file only counts where there is none. */
static uint32_t core_percent(const struct state *s, int index)
{
    const struct vgpu_config *config = &s->config;
    const bool off = config->source == VGPU_CONFIG_FILE ? config->utilization_off
                                                        : atomic_load(&s->shared.region->utilization_switch) == 0;
    if (config->core_policy == VGPU_CORE_POLICY_DISABLE || (config->core_policy == VGPU_CORE_POLICY_DEFAULT && off)) return 100;
    const uint32_t own = atomic_load_explicit(&s->core_percent[index], memory_order_relaxed);
    const uint64_t shown = atomic_load_explicit(&s->shared.region->sm_limit_percent[index], memory_order_relaxed);
    return shown >= 1 && shown < own ? (uint32_t)shown : own;
}

static bool is_blocked(const struct state *s) { return s->config.priority_block || atomic_load(&s->shared.region->recent_kernel) < 0; }

static enum vgpu_core_concern concern_now(const struct state *s)
{
    if (is_blocked(s)) return VGPU_CORES_BLOCKED;
    for (int i = 0; i < atomic_load(&devices.count); i++)
        if (core_percent(s, i) < 100) return VGPU_CORES_LIMITED;
    return VGPU_CORES_FREE;
}

enum vgpu_core_concern vgpu_runtime_core_concern(void)
{
    struct state *s = atomic_load_explicit(&state_pages, memory_order_acquire);
    if (s == NULL || !atomic_load_explicit(&s->ready, memory_order_acquire)) return VGPU_CORES_FREE;
    const int64_t now = now_ms(CLOCK_MONOTONIC_COARSE);
    if (now >= atomic_load_explicit(&s->next_core_look_ms, memory_order_relaxed)) {
        atomic_store_explicit(&s->next_core_look_ms, now + LIMITS_LOOK_MS, memory_order_relaxed);
        note_launch(s);
        look_for_new_limits(s);
        atomic_store_explicit(&s->concern, concern_now(s), memory_order_relaxed);
    }
    return atomic_load_explicit(&s->concern, memory_order_relaxed);
}

bool vgpu_runtime_core_terms(int index, struct vgpu_core_terms *terms)
{
    if (index < 0 || index >= VGPU_MAX_DEVICES || !vgpu_runtime_start()) return false;
    struct state *s = state();
    look_for_new_limits(s);
    *terms = (struct vgpu_core_terms){
        .percent = core_percent(s, index),
        .blocked = is_blocked(s),
        .region = s->shared.region,
        .slot = slot_of(s),
        .process_count = vgpu_region_process_count(s->shared.region),
    };
    return true;
}

int vgpu_runtime_current_device(void)
{
    /* With one device there is nothing to ask; the driver's answer would cost more than all the rest. */
    if (atomic_load_explicit(&devices.count, memory_order_relaxed) == 1) return 0;
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUdevice device;
    return cuda != NULL && cuda->cuCtxGetDevice(&device) == CUDA_SUCCESS ? vgpu_runtime_cuda_device(device) : VGPU_DEVICE_UNKNOWN;
}

const char *vgpu_runtime_device_uuid(int index) { return devices.uuid[index]; }

/* Gives the slot back on a regular exit, so that monitors need not wait for the next sweep. A killed process is swept by others. */
__attribute__((destructor)) static void leave(void)
{
    struct state *s = atomic_load(&state_pages);
    if (s == NULL || !atomic_load(&s->ready) || atomic_load(&s->slot) == NULL) return;
    /* A thread that is stuck in here must not keep the process from ending. */
    if (pthread_mutex_trylock(&s->lock) != 0) return;
    struct vgpu_region_slot *slot = atomic_exchange(&s->slot, NULL);
    vgpu_region_leave(&s->shared, slot);
    pthread_mutex_unlock(&s->lock);
}
