#include "base/spin_lock.h"

#include <pthread.h>
#include <time.h>

/* A hundred looks are about a microsecond, many times what a section lasts; who still waits then waits for a thread that does not run. */
enum { LOOKS = 100, PAUSE_NS = 20000 };

void vgpu_spin_lock_wait(struct vgpu_spin_lock *lock)
{
    int before = PTHREAD_CANCEL_ENABLE; /* without libpthread nothing is stored */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* sleeping is where a thread may be cancelled, and it may hold others */
    for (int looks = 0;; looks++) {
        if (atomic_load_explicit(&lock->taken, memory_order_relaxed) == 0 &&
            atomic_exchange_explicit(&lock->taken, 1, memory_order_acquire) == 0)
            break;
        if (looks >= LOOKS) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    pthread_setcancelstate(before, NULL);
}
