/* A lock between threads of one process for sections that may wait: for the disk, for NVML, for the driver.
 *
 * The thread that holds it is not cancelled (pthread_cancel), or it would stay locked for good; a cancellation that was
 * asked for before takes place after. Locks are given back in the reverse order of taking. One that is the last of the order
 * (state/process_state.h) is taken by vgpu_mutex_lock_last. Every such lock lies in
 * pages that a fork child finds empty (wipe_on_fork.h), and a zeroed one is free. errno stays as it was.
 *
 * It is no pthread_mutex_t: before glibc 2.34 those of libc.so.6 do nothing until libpthread is there, which often
 * comes with the driver, while a lock is held. Then a mutex that nobody locked is unlocked, which ends the process
 * where glibc elides locks (TSX, before 2.27).
 */
#ifndef VGPU_MUTEX_H
#define VGPU_MUTEX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/assert.h"

struct vgpu_mutex {
    _Atomic int state; /* enum vgpu_mutex_state */
    int cancel_state;  /* of the holder, before */
};

enum vgpu_mutex_state { VGPU_MUTEX_FREE, VGPU_MUTEX_TAKEN, VGPU_MUTEX_AWAITED };

/* Waits for a mutex that was found taken, and takes it. */
void vgpu_mutex_wait(struct vgpu_mutex *mutex);

/* Wakes one of those who wait for it. */
void vgpu_mutex_wake(struct vgpu_mutex *mutex);

static inline bool vgpu_mutex_take(struct vgpu_mutex *mutex)
{
    int state = VGPU_MUTEX_FREE;
    return atomic_compare_exchange_strong_explicit(&mutex->state, &state, VGPU_MUTEX_TAKEN, memory_order_acquire, memory_order_relaxed);
}

static inline void vgpu_mutex_lock(struct vgpu_mutex *mutex)
{
    VGPU_ASSERT(vgpu_held_locks.spins == 0 && !vgpu_held_locks.last);
    int before = PTHREAD_CANCEL_ENABLE; /* without libpthread nothing is stored */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (!vgpu_mutex_take(mutex)) vgpu_mutex_wait(mutex);
    mutex->cancel_state = before;
    VGPU_FOR_ASSERT(vgpu_held_locks.mutexes++);
}

/* The same for a mutex with which no other one is taken. */
static inline void vgpu_mutex_lock_last(struct vgpu_mutex *mutex)
{
    vgpu_mutex_lock(mutex);
    VGPU_FOR_ASSERT(vgpu_held_locks.last = true);
}

static inline bool vgpu_mutex_trylock(struct vgpu_mutex *mutex)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (!vgpu_mutex_take(mutex)) {
        pthread_setcancelstate(before, NULL);
        return false;
    }
    mutex->cancel_state = before;
    VGPU_FOR_ASSERT(vgpu_held_locks.mutexes++);
    return true;
}

static inline void vgpu_mutex_unlock(struct vgpu_mutex *mutex)
{
    const int before = mutex->cancel_state;
    VGPU_ASSERT(vgpu_held_locks.mutexes-- > 0 && vgpu_held_locks.spins == 0);
    VGPU_FOR_ASSERT(vgpu_held_locks.last = false);
    if (atomic_exchange_explicit(&mutex->state, VGPU_MUTEX_FREE, memory_order_release) == VGPU_MUTEX_AWAITED) vgpu_mutex_wake(mutex);
    pthread_setcancelstate(before, NULL);
}

#endif
