/* Many processes on one slice: they race for it, or are killed at random moments.
 *
 *   siege race PROCESSES ROUNDS LIMIT     each fills the slice with blocks and frees every second one, ROUNDS times
 *   siege kill POINTS LIMIT SEED          POINTS times two processes that take and give back are killed, a little later each time; after
 *                                         each time this one must get the whole slice within a second, and not a byte more
 *
 * Prints one line of JSON. Links nothing: it looks the driver up as programs do.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
static int (*create)(uint64_t *, size_t, const int *, unsigned long long), (*drop)(uint64_t);
static int (*alloc_async)(uint64_t *, size_t, void *), (*free_async)(uint64_t, void *);

enum { HELD = 64, OUT_OF_MEMORY = 2 };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void look_up(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) exit(3);
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
    *(void **)&release = dlsym(library, "cuMemFree_v2");
    *(void **)&create = dlsym(library, "cuMemCreate");
    *(void **)&drop = dlsym(library, "cuMemRelease");
    *(void **)&alloc_async = dlsym(library, "cuMemAllocAsync");
    *(void **)&free_async = dlsym(library, "cuMemFreeAsync");
}

static void open_device(void)
{
    void *context;
    if (init(0) != 0 || retain(&context, 0) != 0 || set_current(context) != 0) exit(4);
}

/* Fills the slice, frees every second block, and so on. Blocks are multiples of 512 bytes: the card rounds nothing. */
static void churn(long rounds, unsigned int seed)
{
    uint64_t block[4096];
    for (long round = 0; round < rounds; round++) {
        int held = 0;
        while (held < 4096) {
            const size_t bytes = 512 * (size_t)(1 + rand_r(&seed) % 512);
            const int result = alloc(&block[held], bytes);
            if (result == OUT_OF_MEMORY) break;
            if (result != 0) exit(5);
            held++;
        }
        for (int i = 0; i < held; i += 2) release(block[i]);
        for (int i = 1; i < held; i += 2) release(block[i]);
    }
}

static int race(int processes, long rounds, size_t limit)
{
    for (int i = 0; i < processes; i++) {
        if (fork() != 0) continue;
        open_device();
        churn(rounds, (unsigned int)i + 1);
        _exit(0);
    }
    int failed = 0, status;
    for (int i = 0; i < processes; i++) {
        wait(&status);
        failed += status != 0;
    }
    uint64_t whole, more;
    open_device();
    const int all = alloc(&whole, limit), beyond = alloc(&more, 1);
    printf("{\"failed\": %d, \"whole\": %d, \"beyond\": %d}\n", failed, all, beyond);
    return 0;
}

static void victim(unsigned int seed)
{
    static const int properties[8] = {1, 0, 1, 0};
    // It never ends by itself, and nobody else would end it.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_device();
    uint64_t block[HELD] = {0};
    int kind[HELD] = {0};
    for (;;) {
        const int at = rand_r(&seed) % HELD;
        if (block[at] != 0) {
            if (kind[at] == 0) release(block[at]);
            if (kind[at] == 1) free_async(block[at], NULL);
            if (kind[at] == 2) drop(block[at]);
            block[at] = 0;
        } else {
            kind[at] = rand_r(&seed) % 3;
            const size_t bytes = 512 * (size_t)(1 + rand_r(&seed) % 400);
            if (kind[at] == 0 && alloc(&block[at], bytes) != 0) block[at] = 0;
            if (kind[at] == 1 && alloc_async(&block[at], bytes, NULL) != 0) block[at] = 0;
            if (kind[at] == 2 && create(&block[at], 2 << 20, properties, 0) != 0) block[at] = 0;
        }
    }
}

static int kill_at_random(long points, size_t limit, unsigned int seed)
{
    double slowest_s = 0;
    long inexact = 0, late = 0;
    open_device();
    for (long i = 0; i < points; i++) {
        pid_t victims[2];
        for (int v = 0; v < 2; v++) {
            victims[v] = fork();
            if (victims[v] == 0) victim(seed + (unsigned int)(2 * i + v));
        }
        const long wait_ns = (long)(rand_r(&seed) % 4000) * 1000;
        nanosleep(&(struct timespec){.tv_nsec = wait_ns}, NULL);
        for (int v = 0; v < 2; v++) kill(victims[v], SIGKILL);
        for (int v = 0; v < 2; v++) waitpid(victims[v], NULL, 0);
        const double start_s = now_s();
        uint64_t whole, more;
        const int all = alloc(&whole, limit), beyond = alloc(&more, 1);
        const double took_s = now_s() - start_s;
        inexact += all != 0 || beyond != OUT_OF_MEMORY;
        late += took_s > 1;
        if (took_s > slowest_s) slowest_s = took_s;
        if (all == 0) release(whole);
        if (beyond == 0) release(more);
    }
    printf("{\"points\": %ld, \"inexact\": %ld, \"late\": %ld, \"slowest_ms\": %.3f}\n", points, inexact, late, slowest_s * 1e3);
    return 0;
}

int main(int count, char **argument)
{
    look_up();
    if (count == 5 && strcmp(argument[1], "race") == 0) return race(atoi(argument[2]), atol(argument[3]), strtoul(argument[4], NULL, 10));
    if (count == 5 && strcmp(argument[1], "kill") == 0)
        return kill_at_random(atol(argument[2]), strtoul(argument[3], NULL, 10), (unsigned int)atol(argument[4]));
    fprintf(stderr, "siege race PROCESSES ROUNDS LIMIT | kill POINTS LIMIT SEED\n");
    return 2;
}
