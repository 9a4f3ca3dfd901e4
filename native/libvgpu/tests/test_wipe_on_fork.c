#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/wipe_on_fork.h"
#include "check.h"

enum { THREADS = 8, ROUNDS = 20, PAGES_BYTES = 2 * VGPU_PAGE_BYTES };

static struct VGPU_WIPED account {
    int value;
} account;
VGPU_WIPE_ON_FORK(account);
static struct VGPU_WIPED large_account {
    char values[VGPU_PAGE_BYTES + 1];
} large_account;
VGPU_WIPE_ON_FORK(large_account);

static pthread_barrier_t barrier;
static _Atomic(void *) published[ROUNDS];

static bool kernel_is_old; /* before 4.14: it does not know the request */
/* What another thread publishes in the middle of this thread's next request. */
static _Thread_local _Atomic(void *) *won_by_another;

/* In place of the C library's. */
int madvise(void *pages, size_t bytes, int advice)
{
    _Atomic(void *) *won = won_by_another;
    won_by_another = NULL;
    if (won != NULL) CHECK(vgpu_wiped_pages(won, VGPU_PAGE_BYTES) != NULL);
    if (!kernel_is_old || advice != MADV_WIPEONFORK) return (int)syscall(SYS_madvise, pages, bytes, advice);
    errno = EINVAL;
    return -1;
}

static bool is_zero(const char *bytes, size_t count)
{
    while (count > 0 && bytes[count - 1] == 0) count--;
    return count == 0;
}

static void *race(void *pages)
{
    for (int i = 0; i < ROUNDS; i++) {
        const int result = pthread_barrier_wait(&barrier);
        CHECK(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
        ((void **)pages)[i] = vgpu_wiped_pages(&published[i], PAGES_BYTES);
        vgpu_wipe_static_state_on_fork();
    }
    return NULL;
}

/* Several threads begin at once, as those of a program do with their first calls: all get the same pages. */
static void begin_with_all_threads(void)
{
    pthread_t threads[THREADS];
    static void *seen[THREADS][ROUNDS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, race, seen[i]) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < THREADS; i++) CHECK(seen[i][round] != NULL && seen[i][round] == published[round]);
}

/* The pages of the thread that comes second are given back: no child may write there. */
static void come_second(void)
{
    static _Atomic(void *) place;
    won_by_another = &place;
    void *pages = vgpu_wiped_pages(&place, 16 * VGPU_PAGE_BYTES);
    CHECK(pages != NULL && pages == place);
}

static void a_child_finds_all_of_it_empty(void)
{
    account.value = 7;
    memset(&large_account, 7, sizeof large_account);
    for (int i = 0; i < ROUNDS; i++) memset(published[i], 7, PAGES_BYTES);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        bool empty = account.value == 0 && is_zero((const char *)&large_account, sizeof large_account);
        for (int i = 0; i < ROUNDS; i++) empty = empty && is_zero(published[i], PAGES_BYTES);
        _exit(empty ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(account.value == 7);
}

static void in_a_process_of_its_own(bool on_an_old_kernel)
{
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        kernel_is_old = on_an_old_kernel;
        begin_with_all_threads();
        come_second();
        a_child_finds_all_of_it_empty();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    in_a_process_of_its_own(false);
    in_a_process_of_its_own(true);
    return 0;
}
