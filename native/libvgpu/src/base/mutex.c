#include "base/mutex.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef VGPU_ASSERTIONS
_Thread_local struct vgpu_held_locks vgpu_held_locks;
#endif

static void futex(struct vgpu_mutex *mutex, int operation, int value)
{
    const int kept = errno;
    (void)syscall(SYS_futex, &mutex->state, operation | FUTEX_PRIVATE_FLAG, value, NULL);
    errno = kept;
}

/* A thread that has slept takes it as awaited: it cannot know whether it was the only one. */
void vgpu_mutex_wait(struct vgpu_mutex *mutex)
{
    while (atomic_exchange_explicit(&mutex->state, VGPU_MUTEX_AWAITED, memory_order_acquire) != VGPU_MUTEX_FREE)
        futex(mutex, FUTEX_WAIT, VGPU_MUTEX_AWAITED);
}

void vgpu_mutex_wake(struct vgpu_mutex *mutex) { futex(mutex, FUTEX_WAKE, 1); }
