#include "base/wipe_on_fork.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

/* More than all state of this library, a piece for each device among it, even if several threads begin at once and each enters what is
 * static. */
enum { MAX_PIECES = 128 };

/* Where the linker puts the section's ends. */
extern const struct vgpu_wiped __start_vgpu_wiped[] __attribute__((visibility("hidden")));
extern const struct vgpu_wiped __stop_vgpu_wiped[] __attribute__((visibility("hidden")));

/* Only on kernels before 4.14, which do not empty pages themselves. Written without a lock, as a fork may come at any
 * moment: an entry counts as soon as it has both. */
static struct {
    _Atomic(void *) pages; /* NULL: free */
    _Atomic size_t bytes;
} kept[MAX_PIECES];
static _Atomic bool handler_is_set;

static void empty_in_child(void)
{
    for (int i = 0; i < MAX_PIECES; i++) {
        void *pages = atomic_load(&kept[i].pages);
        if (pages != NULL) memset(pages, 0, atomic_load(&kept[i].bytes));
    }
}

static int place_of(const void *pages)
{
    for (int i = 0; i < MAX_PIECES; i++)
        if (atomic_load(&kept[i].pages) == pages) return i;
    return -1;
}

static void keep(void *pages, size_t bytes)
{
    if (place_of(pages) >= 0) return;
    void *free_place = NULL;
    int at = 0;
    while (at < MAX_PIECES && !atomic_compare_exchange_strong(&kept[at].pages, &free_place, pages)) at++, free_place = NULL;
    if (at == MAX_PIECES) return;
    atomic_store(&kept[at].bytes, bytes);
    if (!atomic_exchange(&handler_is_set, true)) pthread_atfork(NULL, NULL, empty_in_child);
}

/* Before the pages are unmapped: a child must not write there. */
static void forget(const void *pages)
{
    const int at = place_of(pages);
    if (at < 0) return;
    atomic_store(&kept[at].bytes, 0);
    atomic_store(&kept[at].pages, NULL);
}

static void wipe(void *pages, size_t bytes)
{
    if (madvise(pages, bytes, MADV_WIPEONFORK) != 0) keep(pages, bytes);
}

static char *end_of(const struct vgpu_wiped *at) { return (char *)at->pages + at->bytes; }

/* The entry whose pages begin where those end; NULL: none. */
static const struct vgpu_wiped *entry_at(const void *pages)
{
    for (const struct vgpu_wiped *at = __start_vgpu_wiped; at < __stop_vgpu_wiped; at++)
        if (at->pages == pages) return at;
    return NULL;
}

static bool continues_another(const struct vgpu_wiped *entry)
{
    for (const struct vgpu_wiped *at = __start_vgpu_wiped; at < __stop_vgpu_wiped; at++)
        if (end_of(at) == entry->pages) return true;
    return false;
}

/* Neighbours at once: each call that names a part of a mapping has the kernel cut it. */
void vgpu_wipe_static_state_on_fork(void)
{
    for (const struct vgpu_wiped *at = __start_vgpu_wiped; at < __stop_vgpu_wiped; at++) {
        if (continues_another(at)) continue;
        char *end = end_of(at);
        for (const struct vgpu_wiped *next = entry_at(end); next != NULL; next = entry_at(end)) end = end_of(next);
        wipe(at->pages, (size_t)(end - (char *)at->pages));
    }
}

void *vgpu_wiped_pages(_Atomic(void *) *published, size_t bytes)
{
    void *pages = atomic_load_explicit(published, memory_order_acquire);
    if (pages != NULL) return pages;
    void *fresh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return NULL;
    wipe(fresh, bytes);
    if (atomic_compare_exchange_strong(published, &pages, fresh)) return fresh;
    forget(fresh);
    munmap(fresh, bytes);
    return pages;
}
