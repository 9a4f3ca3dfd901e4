#include "compute/core_terms.h"

#include "config/devices.h"
#include "intercept/real.h"
#include "region/region_account.h"

/* Written once in a container's life: by whichever process launches first. */
static void note_first_launch(struct vgpu_region *region)
{
    uint64_t none = 0;
    if (atomic_load(vgpu_region_first_kernel_ms(region)) != 0) return;
    atomic_compare_exchange_strong(vgpu_region_first_kernel_ms(region), &none, (uint64_t)vgpu_now_ms(CLOCK_REALTIME));
}

static void note_launch(struct vgpu_process_state *state)
{
    const int64_t now_s = vgpu_now_ms(CLOCK_REALTIME_COARSE) / 1000;
    if (!vgpu_is_due(&state->next_launch_s, now_s, state->launch_interval_s)) return;
    struct vgpu_region *region = state->shared.region;
    note_first_launch(region);
    atomic_store(&region->last_kernel_time_s, (uint64_t)now_s);
    /* Negative: a monitor has asked this container to wait for another; that is the monitor's to lift. */
    if (atomic_load(&region->recent_kernel) >= 0) atomic_store(&region->recent_kernel, 2);
}

/* The container's share of a device. Limits that the tenant could have written into the region only count when they are lower; the switch
 * of a monitor that knows nothing of our limits file only counts where there is none. */
static uint32_t core_percent(const struct vgpu_process_state *state, int index)
{
    const struct vgpu_config *config = &state->config;
    const bool off =
        config->source == VGPU_CONFIG_FILE ? config->utilization_off : atomic_load(&state->shared.region->utilization_switch) == 0;
    if (config->core_policy == VGPU_CORE_POLICY_DISABLE || (config->core_policy == VGPU_CORE_POLICY_DEFAULT && off)) return 100;
    const uint32_t own = atomic_load_explicit(&state->core_percent[index], memory_order_relaxed);
    const uint64_t shown = atomic_load_explicit(vgpu_region_sm_limit_percent(state->shared.region, index), memory_order_relaxed);
    return shown >= 1 && shown < own ? (uint32_t)shown : own;
}

/* As with the switch above, a monitor that knows nothing of our limits file only counts where there is none. */
static bool is_blocked(const struct vgpu_process_state *state)
{
    if (state->config.source != VGPU_CONFIG_FILE) return atomic_load(&state->shared.region->recent_kernel) < 0;
    const int64_t until_ms = atomic_load_explicit(&state->blocked_until_ms, memory_order_relaxed);
    return until_ms != 0 && vgpu_now_ms(CLOCK_MONOTONIC_COARSE) < until_ms;
}

static enum vgpu_core_concern concern_of(const struct vgpu_process_state *state)
{
    if (is_blocked(state)) return VGPU_CORES_BLOCKED;
    for (int i = 0; i < vgpu_state_device_count(); i++)
        if (core_percent(state, i) < 100) return VGPU_CORES_LIMITED;
    return VGPU_CORES_FREE;
}

enum vgpu_core_concern vgpu_core_concern_now(int64_t *now_ms)
{
    struct vgpu_process_state *state = vgpu_state_started();
    if (state == NULL) return VGPU_CORES_FREE;
    const int64_t now = *now_ms = vgpu_now_ms(CLOCK_MONOTONIC_COARSE);
    if (now >= atomic_load_explicit(&state->next_core_look_ms, memory_order_relaxed)) {
        atomic_store_explicit(&state->next_core_look_ms, now + VGPU_LIMITS_LOOK_MS, memory_order_relaxed);
        note_launch(state);
        vgpu_state_look_for_new_limits(state);
        atomic_store_explicit(&state->concern, concern_of(state), memory_order_relaxed);
    }
    return atomic_load_explicit(&state->concern, memory_order_relaxed);
}

bool vgpu_core_limits(int index)
{
    const struct vgpu_process_state *state = vgpu_state_started();
    return state != NULL && index < VGPU_MAX_DEVICES && core_percent(state, index) < 100;
}

bool vgpu_core_terms_of(int index, struct vgpu_core_terms *terms)
{
    struct vgpu_process_state *state = index >= 0 && index < VGPU_MAX_DEVICES ? vgpu_state_start() : NULL;
    if (state == NULL) return false;
    vgpu_state_look_for_new_limits(state);
    *terms = (struct vgpu_core_terms){
        .percent = core_percent(state, index),
        .blocked = is_blocked(state),
        .region = state->shared.region,
        .slot = vgpu_state_slot(state),
        .process_count = vgpu_region_process_count(state->shared.region),
    };
    return true;
}

/* What the driver answered, and at which look; valid until the next one. */
static _Thread_local struct {
    int64_t look_ms; /* 0: not asked */
    int index;
} current;

void vgpu_core_device_changed(void) { current.look_ms = 0; }

int vgpu_core_current_device(void)
{
    struct vgpu_process_state *state = vgpu_state_started();
    const int64_t look_ms = state != NULL ? atomic_load_explicit(&state->next_core_look_ms, memory_order_relaxed) : 0;
    if (look_ms != 0 && current.look_ms == look_ms) return current.index;
    CUdevice device;
    if (vgpu_cuda()->cuCtxGetDevice(&device) != CUDA_SUCCESS) return VGPU_DEVICE_UNKNOWN;
    current.index = vgpu_state_cuda_device(device);
    current.look_ms = look_ms;
    return current.index;
}
