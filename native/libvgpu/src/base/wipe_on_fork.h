/* State that a fork child finds empty: accounts of what the parent holds, and locks that a thread of the parent may
 * have held at the fork.
 *
 * The kernel empties the pages, whatever made the child, so no call of the child needs to come first. A type that is
 * declared VGPU_WIPED fills whole pages; zeroes must be a valid beginning.
 */
#ifndef VGPU_WIPE_ON_FORK_H
#define VGPU_WIPE_ON_FORK_H

#include <stdatomic.h>
#include <stddef.h>

/* The largest page of the machines we run on. */
#if defined(__aarch64__)
#define VGPU_PAGE_BYTES 65536
#else
#define VGPU_PAGE_BYTES 4096
#endif
#define VGPU_WIPED __attribute__((aligned(VGPU_PAGE_BYTES)))

/* Declares of a static object of a VGPU_WIPED type that a fork child finds it empty. Nothing is done for it while the
 * library is loaded: the linker collects these entries, and the process's state walks through them when it starts. */
struct vgpu_wiped {
    void *pages;
    size_t bytes;
};
#define VGPU_WIPE_ON_FORK(object)                 \
    static const struct vgpu_wiped object##_entry \
        __attribute__((section("vgpu_wiped"), used, aligned(sizeof(struct vgpu_wiped)))) = {&(object), sizeof(object)}

/* All objects of VGPU_WIPE_ON_FORK. To be called before anything is entered into one of them; more than once does no
 * harm. */
void vgpu_wipe_static_state_on_fork(void);

/* Pages of zeroes that a fork child finds empty again: made by the first caller and published, for all others what it
 * published. NULL: no memory. Any thread, without a lock; not from signal handlers. */
void *vgpu_wiped_pages(_Atomic(void *) *published, size_t bytes);

#endif
