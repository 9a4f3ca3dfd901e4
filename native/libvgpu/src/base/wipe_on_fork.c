#include "base/wipe_on_fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 16 };

/* Where the linker puts the section's ends. */
extern const struct vgpu_wiped __start_vgpu_wiped[] __attribute__((visibility("hidden")));
extern const struct vgpu_wiped __stop_vgpu_wiped[] __attribute__((visibility("hidden")));

static struct {
    void *pages;
    size_t bytes;
} kept[MOST];
static _Atomic int kept_count;

static void empty_in_child(void)
{
    const int count = atomic_load(&kept_count);
    for (int i = 0; i < count && i < MOST; i++)
        if (kept[i].pages != NULL) memset(kept[i].pages, 0, kept[i].bytes);
}

void vgpu_wipe_on_fork(void *pages, size_t bytes)
{
    if (madvise(pages, bytes, MADV_WIPEONFORK) == 0) return;
    /* Kernels before 4.14 cannot. */
    const int at = atomic_fetch_add(&kept_count, 1);
    if (at >= MOST) return;
    kept[at].bytes = bytes;
    kept[at].pages = pages;
    if (at == 0) pthread_atfork(NULL, NULL, empty_in_child);
}

void vgpu_wipe_static_state_on_fork(void)
{
    for (const struct vgpu_wiped *at = __start_vgpu_wiped; at < __stop_vgpu_wiped; at++)
        vgpu_wipe_on_fork(at->pages, at->bytes);
}
