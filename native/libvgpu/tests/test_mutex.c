#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mutex.h"
#include "base/spin_lock.h"
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

#ifdef VGPU_ASSERTIONS
static struct vgpu_mutex last;
static struct vgpu_spin_lock spinning;

static void take_one_after_the_last(void)
{
    vgpu_mutex_lock_last(&last);
    vgpu_mutex_lock(&mutex);
}

static void take_one_with_a_spin_lock(void)
{
    vgpu_spin_lock(&spinning);
    vgpu_mutex_lock(&mutex);
}

static void ends_the_program(void (*function)(void))
{
    int status;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL); /* a sanitizer's own would exit */
        fclose(stderr);
        function();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
#endif

int main(void)
{
    threads_take_turns();
    a_holder_is_cancelled_after_it_has_unlocked();
#ifdef VGPU_ASSERTIONS
    ends_the_program(take_one_after_the_last);
    ends_the_program(take_one_with_a_spin_lock);
#endif
    return 0;
}
