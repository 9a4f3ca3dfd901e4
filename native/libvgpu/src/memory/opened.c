#include "memory/opened.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/mutex.h"
#include "base/wipe_on_fork.h"
#include "intercept/real.h"
#include "accounting/current.h"
#include "accounting/overhead.h"
#include "accounting/shared_memory.h"

/* A process opens what its neighbours share: some dozens. */
struct window {
    CUdeviceptr pointer;
    const void *context;
    uint64_t bytes;
    int device;
    struct window *next;
};

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock;
    struct window *windows;
    _Atomic int count;
} registry;
VGPU_WIPE_ON_FORK(registry);

void vgpu_opened(CUdeviceptr pointer)
{
    CUdeviceptr base;
    size_t bytes;
    const int device = vgpu_memory_current_device();
    if (device < 0 || vgpu_cuda()->cuMemGetAddressRange_v2(&base, &bytes, pointer) != CUDA_SUCCESS) return;
    struct window *window = malloc(sizeof *window);
    if (window == NULL) return;
    *window = (struct window){.pointer = pointer, .context = vgpu_memory_current_context(), .bytes = bytes, .device = device};
    (void)vgpu_shared_opened(device, bytes, 0);
    vgpu_mutex_lock(&registry.lock);
    window->next = registry.windows;
    registry.windows = window;
    atomic_fetch_add(&registry.count, 1);
    vgpu_mutex_unlock(&registry.lock);
}

/* Takes out the first window at an address, or of a context that has ended. */
static struct window *take(CUdeviceptr pointer, const void *context)
{
    if (atomic_load_explicit(&registry.count, memory_order_acquire) == 0) return NULL;
    vgpu_mutex_lock(&registry.lock);
    struct window **at = &registry.windows;
    while (*at != NULL && (context != NULL ? (*at)->context != context : (*at)->pointer != pointer)) at = &(*at)->next;
    struct window *window = *at;
    if (window != NULL) {
        *at = window->next;
        atomic_fetch_sub(&registry.count, 1);
    }
    vgpu_mutex_unlock(&registry.lock);
    return window;
}

static bool close_one(CUdeviceptr pointer, const void *context)
{
    struct window *window = take(pointer, context);
    if (window == NULL) return false;
    if (vgpu_shared_opened(window->device, 0, window->bytes)) vgpu_overhead_shared(window->device);
    free(window);
    return true;
}

void vgpu_opened_closed(CUdeviceptr pointer)
{
    if (close_one(pointer, NULL)) vgpu_overhead_look_if_changed();
}

void vgpu_opened_forget_context(CUcontext context)
{
    while (close_one(0, context)) {
    }
}

void vgpu_opened_pass_context(CUcontext from, CUcontext to)
{
    vgpu_mutex_lock(&registry.lock);
    for (struct window *at = registry.windows; at != NULL; at = at->next)
        if (at->context == from) at->context = to;
    vgpu_mutex_unlock(&registry.lock);
}
