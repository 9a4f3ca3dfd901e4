#include "state/process_state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/devices.h"
#include "intercept/missing_symbols.h"
#include "base/wipe_on_fork.h"
#include "base/log.h"
#include "region/process.h"
#include "config/quota.h"
#include "region/region_account.h"
#include "region/region_slots.h"
#include "region/region_file.h"

static _Atomic(void *) state_pages; /* struct vgpu_process_state */
static struct vgpu_devices devices; /* survives fork */
static bool devices_discovered;
/* What the parent had mapped; its child lets go of it. */
static struct vgpu_region_file inherited = {.file = -1};
/* With the lock. 7 KB: too much for the stack of a small thread. */
static struct vgpu_region_values values;
static _Thread_local bool starting;

__attribute__((noinline, cold)) static struct vgpu_process_state *first_state(void)
{
    vgpu_wipe_static_state_on_fork();
    return vgpu_wiped_pages(&state_pages, sizeof(struct vgpu_process_state));
}

static inline struct vgpu_process_state *state(void)
{
    void *pages = atomic_load_explicit(&state_pages, memory_order_acquire);
    return __builtin_expect(pages != NULL, 1) ? pages : first_state();
}

static void apply_limits(struct vgpu_process_state *s)
{
    /* On the monotonic clock, so that a wall clock that is set back later prolongs nothing. */
    const int64_t blocks_ms = vgpu_config_blocks_ms(&s->config, vgpu_now_ms(CLOCK_REALTIME));
    atomic_store(&s->blocked_until_ms, blocks_ms > 0 ? vgpu_now_ms(CLOCK_MONOTONIC_COARSE) + blocks_ms : 0);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        values.limit[i] = vgpu_config_limit(&s->config, devices.uuid[i], i);
        atomic_store(&s->limit_bytes[i], values.limit[i].memory_bytes);
        atomic_store(&s->core_percent[i], values.limit[i].core_percent);
    }
    atomic_store(&s->oversubscribe, s->config.oversubscribe);
    atomic_store(&s->unplaced_limit_bytes, vgpu_config_limit(&s->config, "", -1).memory_bytes);
}

/* HAMi's. */
#define DEFAULT_REGION_PATH "/tmp/cudevshr.cache"

/* NULL: this process has nothing to share. Where there is a limits file no variable counts: each process could name a
 * region, and so have a slice, of its own. */
static const char *region_path(const struct vgpu_config *config)
{
    if (config->region_path[0] != '\0') return config->region_path;
    if (config->source == VGPU_CONFIG_FILE) return config->device_count != 0 ? DEFAULT_REGION_PATH : NULL;
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path != NULL && *path != '\0') return path;
    return vgpu_config_limits_anything(config) ? DEFAULT_REGION_PATH : NULL;
}

static int number_of(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? atoi(text) : otherwise;
}

/* The program may have closed our descriptor, and the lock have opened another. */
static void note_descriptor(const struct vgpu_process_state *s) { inherited.file = s->shared.file; }

static void drop_inherited(void)
{
    if (inherited.region != NULL) vgpu_region_close(&inherited);
}

/* `found`: the devices that were discovered, where the limits file lists none; NULL: they were before. */
static int start_locked(struct vgpu_process_state *s, const struct vgpu_devices *found)
{
    drop_inherited();
    if (s->config.device_count != 0)
        vgpu_devices_list(&devices, &s->config);
    else if (!devices_discovered && found != NULL)
        vgpu_devices_take(&devices, found);
    devices_discovered = true;
    values.device_count = atomic_load(&devices.count);
    values.priority = number_of("CUDA_TASK_PRIORITY", 1);
    values.limits_are_authoritative = s->config.source == VGPU_CONFIG_FILE;
    values.place_is_given = s->config.region_path[0] != '\0';
    memcpy(values.uuid, devices.uuid, sizeof values.uuid);
    apply_limits(s);
    s->launch_interval_s = number_of("RECORD_KERNEL_INTERVAL", 1);
    const int error = vgpu_region_open(&s->shared, region_path(&s->config), &values);
    if (error != 0) return error;
    inherited = s->shared;
    vgpu_missing_of_driver();
    for (int i = 0; i < values.device_count; i++)
        vgpu_log(VGPU_LOG_INFO, "device %d %s: %llu bytes, %u %% of the cores", i, values.uuid[i],
                 (unsigned long long)values.limit[i].memory_bytes, values.limit[i].core_percent);
    return 0;
}

/* Reads the limits. Whether devices have to be discovered: that is done without the lock, as it loads NVML, and a thread that has the
 * dynamic linker's lock may wait for ours. */
static bool wants_discovery(struct vgpu_process_state *s)
{
    vgpu_mutex_lock_last(&s->lock);
    const bool is_first = !atomic_load(&s->ready);
    if (is_first) vgpu_config_load(VGPU_LIMITS_PATH, &s->config, &s->stamp);
    const bool wants = is_first && s->config.device_count == 0 && !devices_discovered;
    vgpu_mutex_unlock(&s->lock);
    return wants;
}

/* Apart, as the other long halves here: what every call begins with stays short. */
__attribute__((noinline, cold)) static struct vgpu_process_state *start_now(struct vgpu_process_state *s)
{
    starting = true; /* NVML and the driver are called below and may come back through our hooks */
    struct vgpu_devices *found = wants_discovery(s) ? vgpu_devices_discover() : NULL;
    vgpu_mutex_lock_last(&s->lock);
    if (!atomic_load(&s->ready)) {
        const int error = start_locked(s, found);
        if (error == 0)
            atomic_store_explicit(&s->ready, true, memory_order_release);
        else
            vgpu_log(VGPU_LOG_ERROR, "cannot start: %s", strerror(-error));
    }
    vgpu_mutex_unlock(&s->lock);
    free(found);
    starting = false;
    return vgpu_state_started();
}

struct vgpu_process_state *vgpu_state_start(void)
{
    struct vgpu_process_state *s = state();
    if (s == NULL || starting) return NULL;
    return __builtin_expect(atomic_load_explicit(&s->ready, memory_order_acquire), 1) ? s : start_now(s);
}

struct vgpu_process_state *vgpu_state_started(void)
{
    struct vgpu_process_state *s = atomic_load_explicit(&state_pages, memory_order_acquire);
    return s != NULL && atomic_load_explicit(&s->ready, memory_order_acquire) ? s : NULL;
}

bool vgpu_state_is_starting(void) { return starting; }

static bool is_ours(const struct vgpu_process_state *s, struct vgpu_region_slot *slot)
{
    return slot != NULL && atomic_load_explicit(&slot->pid, memory_order_relaxed) == s->pid;
}

__attribute__((noinline, cold)) static struct vgpu_region_slot *take_slot(struct vgpu_process_state *s)
{
    vgpu_mutex_lock_last(&s->lock);
    struct vgpu_region_slot *slot = atomic_load(&s->slot);
    if (!is_ours(s, slot)) {
        s->pid = getpid();
        s->start_time = vgpu_process_start_time(s->pid);
        slot = vgpu_region_claim(&s->shared, s->start_time);
        note_descriptor(s);
        vgpu_spin_lock(&s->account_lock);
        for (int i = 0; slot != NULL && i < VGPU_MAX_DEVICES; i++) {
            if (s->held[i] != 0) vgpu_region_charge(s->shared.region, slot, i, s->held[i]);
            const uint64_t exported = s->exported[i] + s->taken[i];
            if (exported != 0 || s->imported[i] != 0) vgpu_region_set_shared(slot, i, exported, s->imported[i]);
        }
        atomic_store_explicit(&s->slot, slot, memory_order_release);
        vgpu_spin_unlock(&s->account_lock);
    }
    vgpu_mutex_unlock(&s->lock);
    return slot;
}

struct vgpu_region_slot *vgpu_state_slot(struct vgpu_process_state *s)
{
    struct vgpu_region_slot *slot = atomic_load_explicit(&s->slot, memory_order_acquire);
    return __builtin_expect(is_ours(s, slot), 1) ? slot : take_slot(s);
}

void vgpu_state_register(void)
{
    struct vgpu_process_state *s = vgpu_state_start();
    if (s != NULL) (void)vgpu_state_slot(s);
}

/* What others wrote into the region does not change what this process holds. */
static void repair_own_share(struct vgpu_process_state *s)
{
    struct vgpu_region_slot *slot = atomic_load(&s->slot) != NULL ? vgpu_state_slot(s) : NULL;
    if (slot == NULL) return;
    vgpu_region_repair_slot(s->shared.region, slot, s->start_time);
    /* The program may have closed our descriptor. A thread that has the lock may just be opening another: then the next look does it. */
    if (vgpu_mutex_trylock(&s->lock)) {
        vgpu_region_hold_slot(&s->shared, (int)(slot - s->shared.region->slots));
        vgpu_mutex_unlock(&s->lock);
    }
    const int count = atomic_load(&devices.count);
    vgpu_spin_lock(&s->account_lock);
    for (int i = 0; i < count; i++) vgpu_region_repair_share(s->shared.region, slot, i, s->held[i]);
    vgpu_spin_unlock(&s->account_lock);
}

_Atomic bool vgpu_state_looked;

__attribute__((noinline, cold)) static void look_for_new_limits(struct vgpu_process_state *s)
{
    atomic_store(&vgpu_state_looked, true);
    repair_own_share(s);
    if (!vgpu_config_changed(VGPU_LIMITS_PATH, &s->stamp)) return;
    vgpu_mutex_lock_last(&s->lock);
    vgpu_config_load(VGPU_LIMITS_PATH, &s->config, &s->stamp);
    vgpu_devices_list(&devices, &s->config);
    apply_limits(s);
    vgpu_region_publish_devices(&s->shared, devices.uuid, atomic_load(&devices.count));
    vgpu_region_publish_limits(s->shared.region, values.limit, atomic_load(&devices.count));
    vgpu_mutex_unlock(&s->lock);
    vgpu_log(VGPU_LOG_INFO, "limits read again");
}

void vgpu_state_look_for_new_limits(struct vgpu_process_state *s)
{
    if (vgpu_is_due(&s->next_look_ms, vgpu_now_ms(CLOCK_MONOTONIC_COARSE), VGPU_LIMITS_LOOK_MS)) look_for_new_limits(s);
}

int vgpu_state_cuda_device(CUdevice device) { return vgpu_devices_of_cuda(&devices, device); }

int vgpu_state_nvml_device(nvmlDevice_t device) { return vgpu_devices_of_nvml(&devices, device); }

bool vgpu_state_lock_region(struct vgpu_process_state *s)
{
    vgpu_mutex_lock_last(&s->lock);
    if (vgpu_region_lock(&s->shared) == 0) return true;
    vgpu_mutex_unlock(&s->lock);
    return false;
}

void vgpu_state_unlock_region(struct vgpu_process_state *s)
{
    vgpu_region_unlock(&s->shared);
    note_descriptor(s);
    vgpu_mutex_unlock(&s->lock);
}

void vgpu_state_reclaim(struct vgpu_process_state *s)
{
    if (!vgpu_state_lock_region(s)) return;
    vgpu_region_reclaim(&s->shared);
    vgpu_state_unlock_region(s);
}

int vgpu_state_device_count(void) { return atomic_load_explicit(&devices.count, memory_order_relaxed); }

const char *vgpu_state_device_uuid(int index) { return devices.uuid[index]; }

/* Gives the slot back on a regular exit, so that monitors need not wait for the next sweep. A killed process is swept
 * by others. */
__attribute__((destructor)) static void leave(void)
{
    struct vgpu_process_state *s = atomic_load(&state_pages);
    if (s == NULL || !atomic_load(&s->ready) || atomic_load(&s->slot) == NULL) return;
    /* A thread that is stuck in here must not keep the process from ending. */
    if (!vgpu_mutex_trylock(&s->lock)) return;
    struct vgpu_region_slot *slot = atomic_exchange(&s->slot, NULL);
    vgpu_region_leave(&s->shared, slot);
    vgpu_mutex_unlock(&s->lock);
}
