/* A lock between threads of one process for sections that may wait: for the disk, for NVML, for the driver.
 *
 * Whoever holds it is not cancelled (pthread_cancel), or it would stay locked for good; a cancellation that was asked for meanwhile takes
 * place after. Locks are given back in the reverse order of taking. Every such lock lies in pages that a fork child finds empty
 * (lineage.h), and a zeroed one is free.
 */
#ifndef VGPU_MUTEX_H
#define VGPU_MUTEX_H

#include <pthread.h>
#include <stdbool.h>

struct vgpu_mutex {
    pthread_mutex_t mutex;
    int cancel_state; /* of the holder, before */
};

static inline void vgpu_mutex_lock(struct vgpu_mutex *mutex)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    pthread_mutex_lock(&mutex->mutex);
    mutex->cancel_state = before;
}

static inline bool vgpu_mutex_trylock(struct vgpu_mutex *mutex)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (pthread_mutex_trylock(&mutex->mutex) != 0) return pthread_setcancelstate(before, NULL), false;
    mutex->cancel_state = before;
    return true;
}

static inline void vgpu_mutex_unlock(struct vgpu_mutex *mutex)
{
    const int before = mutex->cancel_state;
    pthread_mutex_unlock(&mutex->mutex);
    pthread_setcancelstate(before, NULL);
}

#endif
