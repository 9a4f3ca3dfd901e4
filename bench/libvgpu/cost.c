/* What driver calls cost: launches, a pair of allocation and free with many blocks alive, start-up.
 *
 *   cost launch CALLS      ns per cuLaunchKernel
 *   cost alloc LIVE PAIRS  ns per cuMemAlloc + cuMemFree with LIVE other blocks alive
 *   cost start             CPU time of the process, in us, until its first cuInit has returned
 *
 * Run with and without libvgpu; the difference is libvgpu's. Each prints the best of many short rounds: what a shared machine adds to
 * a round is not the library's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 200 };

static void *library;

static double now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *function(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) exit(3);
    return found;
}

static void check(int result)
{
    if (result != 0) exit(4);
}

static void open_device(void)
{
    void *context;
    check(((int (*)(unsigned))function("cuInit"))(0));
    check(((int (*)(void **, int))function("cuDevicePrimaryCtxRetain"))(&context, 0));
    check(((int (*)(void *))function("cuCtxSetCurrent"))(context));
}

typedef int (*launch_function)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static double launches(long calls)
{
    static const char image[] = ".version 6.0\n.target sm_50\n.visible .entry idle()\n{ ret; }\n";
    void *module, *kernel;
    check(((int (*)(void **, const void *))function("cuModuleLoadData"))(&module, image));
    check(((int (*)(void **, void *, const char *))function("cuModuleGetFunction"))(&kernel, module, "idle"));
    const launch_function launch = (launch_function)function("cuLaunchKernel");
    const double start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < calls; i++) (void)launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / (double)calls;
}

static double pairs(long count, int (*alloc)(uint64_t *, size_t), int (*release)(uint64_t))
{
    uint64_t pointer;
    const double start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < count; i++) {
        check(alloc(&pointer, 1024));
        check(release(pointer));
    }
    return (now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / (double)count;
}

static double best_of(double best, double now) { return best == 0 || now < best ? now : best; }

int main(int words, char **word)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || words < 2) return 2;
    double best = 0;
    if (strcmp(word[1], "start") == 0) {
        check(((int (*)(unsigned))function("cuInit"))(0));
        printf("%.1f\n", now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e3);
        return 0;
    }
    open_device();
    if (strcmp(word[1], "launch") == 0) {
        for (int i = 0; i < ROUNDS; i++) best = best_of(best, launches(atol(word[2])));
    } else {
        int (*alloc)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))function("cuMemAlloc_v2");
        int (*release)(uint64_t) = (int (*)(uint64_t))function("cuMemFree_v2");
        uint64_t pointer;
        for (long i = atol(word[2]); i > 0; i--) check(alloc(&pointer, 1024));
        for (int i = 0; i < ROUNDS; i++) best = best_of(best, pairs(atol(word[3]), alloc, release));
    }
    printf("%.1f\n", best);
    return 0;
}
