#include "pools/leaving.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/mutex.h"
#include "base/wipe_on_fork.h"
#include "intercept/real.h"
#include "pools/freed_place.h"
#include "pools/pool.h"
#include "accounting/slice.h"

/* The driver answers that it waits for work that was queued before. */
enum { WAIT_MS = 2000, PAUSE_NS = 1000000 };
/* A stream has two entries at most: one whose event comes soon, and one that all later frees move on. Empty ones wait
 * for the next free, as making an event costs more than recording one again. */
enum { ENTRIES_OF_A_STREAM = 2, SPARE_ENTRIES = 64 };

struct entry {
    struct vgpu_freed_place place;
    CUevent event; /* NULL: none could be had; then the bytes stay until the context ends */
    uint64_t bytes;
    CUmemoryPool ending; /* the pool, once its destruction has begun */
    bool waited; /* for the event: the driver has let go of what was freed before it */
    struct entry *next;
};

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock;
    struct entry *entries; /* the newest first */
    int count;
    _Atomic int leaving; /* entries with bytes */
} registry;
VGPU_WIPE_ON_FORK(registry);

/* Takes the entry out that a further free in that place goes to; NULL: a new one. */
static struct entry *take_entry(const struct vgpu_freed_place *place)
{
    struct entry **found = NULL;
    int have = 0;
    vgpu_mutex_lock(&registry.lock);
    for (struct entry **at = &registry.entries; *at != NULL; at = &(*at)->next) {
        if (!vgpu_freed_same_place(&(*at)->place, place)) continue;
        have++;
        if (found == NULL || ((*found)->bytes != 0 && (*at)->bytes == 0)) found = at;
    }
    struct entry *entry = found != NULL && ((*found)->bytes == 0 || have >= ENTRIES_OF_A_STREAM) ? *found : NULL;
    if (entry != NULL) {
        *found = entry->next;
        registry.count--;
        if (entry->bytes != 0) atomic_fetch_sub(&registry.leaving, 1);
    }
    vgpu_mutex_unlock(&registry.lock);
    return entry;
}

static void put_entry(struct entry *entry)
{
    vgpu_mutex_lock(&registry.lock);
    entry->next = registry.entries;
    registry.entries = entry;
    registry.count++;
    atomic_fetch_add(&registry.leaving, 1);
    vgpu_mutex_unlock(&registry.lock);
}

static void release(CUmemoryPool pool, int device, uint64_t bytes)
{
    if (pool != NULL)
        vgpu_pool_freed(pool, device, bytes);
    else
        vgpu_slice_release(device, bytes);
}

void vgpu_leaving_add(CUmemoryPool pool, int device, uint64_t bytes, CUstream stream)
{
    const struct vgpu_freed_place place = vgpu_freed_place(pool, device, stream);
    struct entry *entry = take_entry(&place);
    if (entry == NULL) {
        entry = calloc(1, sizeof *entry);
        if (entry == NULL) return; /* charged too long, never too short */
        entry->place = place;
    }
    entry->bytes += bytes;
    entry->waited = false;
    entry->event = vgpu_freed_record(&entry->place, entry->event);
    put_entry(entry);
}

/* From the oldest: if the driver gave the memory of a later free, what is left is released later than need be. */
uint64_t vgpu_leaving_take(CUmemoryPool pool, int device, CUstream stream, uint64_t wanted)
{
    if (atomic_load_explicit(&registry.leaving, memory_order_acquire) == 0) return 0;
    const struct vgpu_freed_place place = vgpu_freed_place(pool, device, stream);
    uint64_t taken = 0;
    vgpu_mutex_lock(&registry.lock);
    for (bool more = true; more && taken < wanted;) {
        struct entry *oldest = NULL;
        for (struct entry *at = registry.entries; at != NULL; at = at->next)
            if (at->bytes != 0 && vgpu_freed_same_place(&at->place, &place)) oldest = at;
        more = oldest != NULL;
        if (!more) break;
        const uint64_t part = oldest->bytes < wanted - taken ? oldest->bytes : wanted - taken;
        oldest->bytes -= part;
        taken += part;
        if (oldest->bytes == 0) atomic_fetch_sub(&registry.leaving, 1);
    }
    vgpu_mutex_unlock(&registry.lock);
    return taken;
}

/* An entry that is done, whose bytes the caller releases without the lock. */
struct done {
    struct vgpu_freed_place place;
    uint64_t bytes;
};
enum { AT_ONCE = 8 };

static bool is_done(const struct entry *entry)
{
    return entry->event != NULL && vgpu_cuda()->cuEventQuery(entry->event) != CUDA_ERROR_NOT_READY;
}

/* What is done is waited for at once. With the lock. */
static bool let_go(struct entry *entry)
{
    if (entry->waited) return false;
    entry->waited = true;
    return vgpu_cuda()->cuEventSynchronize(entry->event) == CUDA_SUCCESS;
}

/* Drops empty entries beyond those that wait for the next free. With the lock. */
static void drop_spare(void)
{
    for (struct entry **at = &registry.entries; *at != NULL && registry.count > SPARE_ENTRIES;) {
        struct entry *entry = *at;
        if (entry->bytes != 0) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        registry.count--;
        if (entry->event != NULL) {
            if (is_done(entry)) (void)let_go(entry);
            (void)vgpu_cuda()->cuEventDestroy_v2(entry->event);
        }
        free(entry);
    }
}

/* Empties entries that are done, AT_ONCE at most. Returns how many. */
static int empty_done(struct done *done)
{
    int count = 0;
    vgpu_mutex_lock(&registry.lock);
    for (struct entry *entry = registry.entries; entry != NULL && count < AT_ONCE; entry = entry->next) {
        if (entry->bytes == 0 || !is_done(entry)) continue;
        if (entry->place.pool == NULL) (void)let_go(entry); /* no pool answers what it still has */
        done[count++] = (struct done){entry->place, entry->bytes};
        entry->bytes = 0;
        atomic_fetch_sub(&registry.leaving, 1);
    }
    drop_spare();
    vgpu_mutex_unlock(&registry.lock);
    return count;
}

/* Whether memory of that device (ANY_DEVICE: of any) became free. */
enum { ANY_DEVICE = -1 };
static bool settle(int device)
{
    struct done done[AT_ONCE];
    bool any = false;
    int count = AT_ONCE;
    const int mode = vgpu_freed_relax_capture();
    while (count == AT_ONCE) {
        count = empty_done(done);
        for (int i = 0; i < count; i++) {
            release(done[i].place.pool, done[i].place.device, done[i].bytes);
            any = any || device == ANY_DEVICE || done[i].place.device == device;
        }
    }
    vgpu_freed_restore_capture(mode);
    return any;
}

bool vgpu_leaving_settle(void)
{
    return atomic_load_explicit(&registry.leaving, memory_order_acquire) != 0 && vgpu_has_cuda() && settle(ANY_DEVICE);
}

bool vgpu_leaving_let_go(int device)
{
    bool any = atomic_load_explicit(&registry.leaving, memory_order_acquire) != 0 && settle(device);
    const int mode = vgpu_freed_relax_capture();
    vgpu_mutex_lock(&registry.lock);
    for (struct entry *at = registry.entries; at != NULL; at = at->next)
        if (at->place.device == device && at->bytes == 0 && !at->waited && is_done(at)) any = let_go(at) || any;
    vgpu_mutex_unlock(&registry.lock);
    vgpu_freed_restore_capture(mode);
    return any;
}

static bool is_leaving_from(int device)
{
    bool found = false;
    vgpu_mutex_lock(&registry.lock);
    for (const struct entry *at = registry.entries; at != NULL && !found; at = at->next)
        found = at->bytes != 0 && at->event != NULL && at->place.device == device;
    vgpu_mutex_unlock(&registry.lock);
    return found;
}

bool vgpu_leaving_wait(int device, int64_t *waited_ms)
{
    if (atomic_load_explicit(&registry.leaving, memory_order_acquire) == 0) return false;
    int before = PTHREAD_CANCEL_ENABLE; /* without libpthread nothing is stored */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    bool any = vgpu_leaving_let_go(device);
    for (; !any && *waited_ms < WAIT_MS && is_leaving_from(device); ++*waited_ms) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        any = vgpu_leaving_let_go(device);
    }
    pthread_setcancelstate(before, NULL);
    return any;
}

void vgpu_leaving_pool_ends(CUmemoryPool pool)
{
    vgpu_mutex_lock(&registry.lock);
    for (struct entry *at = registry.entries; at != NULL; at = at->next) {
        if (at->place.pool != pool) continue;
        at->ending = pool;
        at->place.pool = NULL;
    }
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_leaving_pool_stays(CUmemoryPool pool)
{
    vgpu_mutex_lock(&registry.lock);
    for (struct entry *at = registry.entries; at != NULL; at = at->next)
        if (at->ending == pool && at->place.pool == NULL) at->place.pool = pool;
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_leaving_forget_context(CUcontext context)
{
    struct entry *gone = NULL;
    vgpu_mutex_lock(&registry.lock);
    for (struct entry **at = &registry.entries; *at != NULL;) {
        struct entry *entry = *at;
        if (entry->place.context != context) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        entry->next = gone;
        gone = entry;
        registry.count--;
        if (entry->bytes != 0) atomic_fetch_sub(&registry.leaving, 1);
    }
    vgpu_mutex_unlock(&registry.lock);
    while (gone != NULL) {
        struct entry *entry = gone;
        gone = entry->next;
        if (entry->bytes != 0) release(entry->place.pool, entry->place.device, entry->bytes);
        free(entry); /* its event went with the context */
    }
}
