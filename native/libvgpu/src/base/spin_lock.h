/* A lock between threads of one process, for sections of some nanoseconds: one locked instruction where a mutex needs
 * two.
 *
 * A zeroed lock is free. A thread that finds it taken tries again for a moment and then sleeps in short steps, so that
 * an owner of lower priority gets on. Not for signal handlers. In a fork child a lock may still be held by a thread
 * that the child does not have: zero it.
 */
#ifndef VGPU_SPIN_LOCK_H
#define VGPU_SPIN_LOCK_H

#include <stdatomic.h>

#include "base/assert.h"

struct vgpu_spin_lock {
    _Atomic int taken;
};

/* Waits for a lock that was found taken. */
void vgpu_spin_lock_wait(struct vgpu_spin_lock *lock);

static inline void vgpu_spin_lock(struct vgpu_spin_lock *lock)
{
    if (__builtin_expect(atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) != 0, 0)) vgpu_spin_lock_wait(lock);
    VGPU_ASSERT(vgpu_held_locks.spins++ == 0);
}

static inline void vgpu_spin_unlock(struct vgpu_spin_lock *lock)
{
    VGPU_ASSERT(atomic_load(&lock->taken) == 1);
    VGPU_FOR_ASSERT(vgpu_held_locks.spins--);
    atomic_store_explicit(&lock->taken, 0, memory_order_release);
}

#endif
