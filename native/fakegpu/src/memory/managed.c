/* Managed memory of the stand-in driver: advice, prefetches and discards, and what is known of a range.
 *
 * Where a page lies makes no difference to what it costs here; but what was advised is kept, and a discarded page is gone. Of one range
 * and subject the newest note counts.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/block.h"
#include "capture/capture.h"
#include "copy/copy.h"
#include "stream/deferred.h"

/* CUmem_advise */
enum {
    SET_READ_MOSTLY = 1,
    UNSET_READ_MOSTLY = 2,
    SET_PREFERRED_LOCATION = 3,
    UNSET_PREFERRED_LOCATION = 4,
    SET_ACCESSED_BY = 5,
    UNSET_ACCESSED_BY = 6
};

/* What a note is about; of accesses there is one subject per device. */
enum subject { READ_MOSTLY, PREFERRED_LOCATION, LAST_PREFETCH, ACCESSED_BY };

struct note {
    CUdeviceptr from, until;
    int subject;
    CUmemLocation where; /* type 0: nowhere; of READ_MOSTLY and ACCESSED_BY any type but 0 is yes */
    struct note *next;   /* older */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct note *notes; /* the newest first */

static CUresult note(CUdeviceptr pointer, size_t bytes, int subject, CUmemLocation where)
{
    struct note *made = malloc(sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *made = (struct note){pointer, pointer + bytes, subject, where, notes};
    for (struct note **at = &made->next; *at != NULL;) { /* those that it covers count no more */
        struct note *old = *at;
        if (old->subject == subject && old->from >= made->from && old->until <= made->until)
            *at = old->next, free(old);
        else
            at = &old->next;
    }
    notes = made;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

void fg_forget_range(CUdeviceptr pointer, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (struct note **at = &notes; *at != NULL;) {
        struct note *old = *at;
        if (old->from < pointer + bytes && old->until > pointer)
            *at = old->next, free(old);
        else
            at = &old->next;
    }
    pthread_mutex_unlock(&lock);
}

/* The location that was noted for all of the range; type 0 where there is none, or not one for all. With the lock. */
static CUmemLocation noted(CUdeviceptr from, CUdeviceptr until, int subject)
{
    CUmemLocation all = {0, 0};
    for (CUdeviceptr at = from; at < until;) {
        CUmemLocation here = {0, 0};
        CUdeviceptr end = until;
        for (const struct note *n = notes; n != NULL; n = n->next) {
            if (n->subject != subject || n->until <= at) continue;
            if (n->from > at) { /* newer than what counts at this place: it ends there */
                if (n->from < end) end = n->from;
                continue;
            }
            here = n->where;
            if (n->until < end) end = n->until;
            break;
        }
        if (here.type == 0 || (at > from && (here.type != all.type || here.id != all.id))) return (CUmemLocation){0, 0};
        all = here;
        at = end;
    }
    return all;
}

static CUresult check_managed(CUdeviceptr pointer, size_t bytes)
{
    struct fg_block block;
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == 0 || !fg_find_block(pointer, &block) || !block.managed || bytes > block.base + block.bytes - pointer)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult check_place(CUmemLocation place)
{
    enum { HOST_NUMA = 3 };
    switch (place.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return fg_check_device(place.id) == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location)
{
    const CUmemLocation yes = {CU_MEM_LOCATION_TYPE_HOST, 0}, no = {0, 0};
    CUresult result = advice >= SET_READ_MOSTLY && advice <= UNSET_ACCESSED_BY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    const bool has_place = advice == SET_PREFERRED_LOCATION || advice == SET_ACCESSED_BY || advice == UNSET_ACCESSED_BY;
    if (result == CUDA_SUCCESS && has_place) result = check_place(location);
    if (result == CUDA_SUCCESS) result = check_managed(pointer, bytes);
    if (result != CUDA_SUCCESS) return result;
    const int accessor = ACCESSED_BY + (location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id + 1 : 0);
    switch (advice) {
    case SET_READ_MOSTLY: return note(pointer, bytes, READ_MOSTLY, yes);
    case UNSET_READ_MOSTLY: return note(pointer, bytes, READ_MOSTLY, no);
    case SET_PREFERRED_LOCATION: return note(pointer, bytes, PREFERRED_LOCATION, location);
    case UNSET_PREFERRED_LOCATION: return note(pointer, bytes, PREFERRED_LOCATION, no);
    default: return note(pointer, bytes, accessor, advice == SET_ACCESSED_BY ? yes : no);
    }
}

static CUmemLocation place_of(CUdevice device)
{
    const int type = device < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE; /* CU_DEVICE_CPU is -1 */
    return (CUmemLocation){type, device < 0 ? 0 : device};
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device)
{
    return cuMemAdvise_v2(pointer, bytes, advice, place_of(device));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned int flags, CUstream stream)
{
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_broken(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = flags == 0 ? check_place(location) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) result = check_managed(pointer, bytes);
    return result == CUDA_SUCCESS ? note(pointer, bytes, LAST_PREFETCH, location) : result;
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
    return cuMemPrefetchAsync_v2(pointer, bytes, place_of(device), 0, stream);
}

struct range {
    CUdeviceptr pointer;
    size_t bytes;
};

/* Whole pages go back to the host; they read as zeroes until they are written again. */
static void discard(void *data)
{
    static const CUdeviceptr PAGE = 4096;
    const struct range *range = data;
    const CUdeviceptr from = (range->pointer + PAGE - 1) / PAGE * PAGE, until = (range->pointer + range->bytes) / PAGE * PAGE;
    if (from < until) madvise((void *)(uintptr_t)from, until - from, MADV_DONTNEED);
    free(data);
}

static CUresult discard_later(CUdeviceptr pointer, size_t bytes, CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    struct range *range = result == CUDA_SUCCESS ? malloc(sizeof *range) : NULL;
    if (range == NULL) return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
    *range = (struct range){pointer, bytes};
    return fg_defer(context, stream, NULL, discard, range) != 0 ? CUDA_SUCCESS : (free(range), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Batches: all is checked before the first is done; streams of a context's own alone take them. */
static CUresult check_batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count, unsigned long long flags, CUstream stream)
{
    if (pointers == NULL || sizes == NULL || count == 0 || flags != 0 || stream == NULL || (uintptr_t)stream == 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_broken(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) result = check_managed(pointers[i], sizes[i]);
    return result;
}

/* Place number p holds from the range of its index to that of the next place. */
static CUresult check_places(const CUmemLocation *places, const size_t *indexes, size_t place_count, size_t count)
{
    if (places == NULL || indexes == NULL || place_count == 0 || place_count > count || indexes[0] != 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (size_t p = 0; p < place_count && result == CUDA_SUCCESS; p++) {
        if (p > 0 && (indexes[p] <= indexes[p - 1] || indexes[p] >= count)) return CUDA_ERROR_INVALID_VALUE;
        result = check_place(places[p]);
    }
    return result;
}

static CUresult batch(const CUdeviceptr *pointers, const size_t *sizes, size_t count, const CUmemLocation *places, const size_t *indexes,
                      size_t place_count, unsigned long long flags, CUstream stream, bool discards, bool prefetches)
{
    CUresult result = check_batch(pointers, sizes, count, flags, stream);
    if (result == CUDA_SUCCESS && prefetches) result = check_places(places, indexes, place_count, count);
    size_t place = 0;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        while (prefetches && place + 1 < place_count && indexes[place + 1] <= i) place++;
        if (discards) result = discard_later(pointers[i], sizes[i], stream);
        if (prefetches && result == CUDA_SUCCESS) result = note(pointers[i], sizes[i], LAST_PREFETCH, places[place]);
    }
    return result;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *places, size_t *indexes,
                                 size_t place_count, unsigned long long flags, CUstream stream)
{
    return batch(pointers, sizes, count, places, indexes, place_count, flags, stream, false, true);
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, unsigned long long flags, CUstream stream)
{
    return batch(pointers, sizes, count, NULL, NULL, 0, flags, stream, true, false);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count, CUmemLocation *places, size_t *indexes,
                                           size_t place_count, unsigned long long flags, CUstream stream)
{
    return batch(pointers, sizes, count, places, indexes, place_count, flags, stream, true, true);
}

/* A device by its number, the host as -1, nothing as -2. */
static int device_of(CUmemLocation place)
{
    enum { HOST = -1, NOWHERE = -2 };
    return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : place.type == 0 ? NOWHERE : HOST;
}

static CUresult attribute(void *data, size_t room, int what, CUdeviceptr from, CUdeviceptr until)
{
    enum {
        IS_READ_MOSTLY = 1,
        PREFERRED = 2,
        ACCESSORS = 3,
        PREFETCHED = 4,
        PREFERRED_TYPE = 5,
        PREFERRED_ID = 6,
        PREFETCHED_TYPE = 7,
        PREFETCHED_ID = 8
    };
    int *to = data;
    const size_t slots = room / sizeof *to;
    if (what < IS_READ_MOSTLY || what > PREFETCHED_ID || data == NULL || slots == 0 || room % sizeof *to != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (what != ACCESSORS && slots != 1) return CUDA_ERROR_INVALID_VALUE;
    const bool is_preferred = what == PREFERRED || what == PREFERRED_TYPE || what == PREFERRED_ID;
    const CUmemLocation place = noted(from, until, is_preferred ? PREFERRED_LOCATION : LAST_PREFETCH);
    switch (what) {
    case IS_READ_MOSTLY: *to = noted(from, until, READ_MOSTLY).type != 0; break;
    case PREFERRED:
    case PREFETCHED: *to = device_of(place); break;
    case PREFERRED_TYPE:
    case PREFETCHED_TYPE: *to = place.type; break;
    case PREFERRED_ID:
    case PREFETCHED_ID: *to = place.id; break;
    default:
        for (int device = -1, slot = 0; (size_t)slot < slots; device++) {
            if (device == fg_driver.device_count)
                while ((size_t)slot < slots) to[slot++] = device_of((CUmemLocation){0, 0});
            else if (noted(from, until, ACCESSED_BY + device + 1).type != 0)
                to[slot++] = device;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *rooms, int *attributes, size_t count, CUdeviceptr pointer, size_t bytes)
{
    if (data == NULL || rooms == NULL || attributes == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_managed(pointer, bytes);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = attribute(data[i], rooms[i], attributes[i], pointer, pointer + bytes);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuMemRangeGetAttribute(void *data, size_t room, int what, CUdeviceptr pointer, size_t bytes)
{
    return cuMemRangeGetAttributes(&data, &room, &what, 1, pointer, bytes);
}
