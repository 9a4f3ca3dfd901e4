#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "base/mutex.h"
#include "check.h"

enum { THREADS = 8, ROUNDS = 20000 };

static struct vgpu_mutex mutex;
static long counted; /* with the mutex */
static _Atomic bool was_cancelled_late;
static int ready[2], go[2];

static void *count(void *argument)
{
    for (int i = 0; i < ROUNDS; i++) {
        errno = EDOM;
        vgpu_mutex_lock(&mutex);
        counted++;
        vgpu_mutex_unlock(&mutex);
        CHECK(errno == EDOM);
    }
    return argument;
}

static void threads_take_turns(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, count, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(counted == (long)THREADS * ROUNDS);
    CHECK(mutex.state == VGPU_MUTEX_FREE);
}

__attribute__((noinline)) static void hold_it(void)
{
    char byte = 0;
    vgpu_mutex_lock(&mutex);
    CHECK(write(ready[1], &byte, 1) == 1);
    CHECK(read(go[0], &byte, 1) == 1); /* where a thread may be cancelled */
    was_cancelled_late = true;
    vgpu_mutex_unlock(&mutex);
}

/* Without variables of its own: AddressSanitizer keeps those of a cancelled thread. */
static void *hold(void *argument)
{
    hold_it();
    pthread_testcancel();
    return argument;
}

static void a_holder_is_cancelled_after_it_has_unlocked(void)
{
    pthread_t holder;
    void *result;
    char byte = 0;
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    CHECK(pthread_create(&holder, NULL, hold, NULL) == 0);
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(!vgpu_mutex_trylock(&mutex));
    CHECK(pthread_cancel(holder) == 0);
    CHECK(write(go[1], &byte, 1) == 1);
    CHECK(pthread_join(holder, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && was_cancelled_late);
    CHECK(vgpu_mutex_trylock(&mutex));
    vgpu_mutex_unlock(&mutex);
}

int main(void)
{
    threads_take_turns();
    a_holder_is_cancelled_after_it_has_unlocked();
    return 0;
}
