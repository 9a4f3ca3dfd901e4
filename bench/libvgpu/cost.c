/* What driver calls cost: launches, a pair of allocation and free with many blocks alive, start-up.
 *
 *   cost launch        ns per cuLaunchKernel
 *   cost alloc LIVE    ns per cuMemAlloc + cuMemFree with LIVE other blocks alive, with a module loaded as every program has one
 *   cost stream        ns per cuMemAllocAsync + cuMemFreeAsync in one stream, with a module loaded
 *   cost start         CPU time of the process, in us, until its first cuInit has returned
 *
 * The first three measure one round for each line that they are sent, and answer with one: so two programs, with and without libvgpu,
 * are measured in turns under the same circumstances. A round is many short pieces, of which the lowest tenth counts: interrupts and
 * neighbours make a piece longer, nothing makes it shorter.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* 40 pieces of 1000 launches (or 500 pairs) are some milliseconds: less than a scheduler's turn. */
enum { PIECES = 40, LAUNCHES = 1000, PAIRS = 500 };

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

static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*alloc)(uint64_t *, size_t);
static int (*release)(uint64_t);
static int (*alloc_async)(uint64_t *, size_t, void *);
static int (*release_async)(uint64_t, void *);
static int (*synchronize)(void *);
static void *kernel;

static void prepare_launches(void)
{
    static const char image[] = ".version 6.0\n.target sm_50\n.visible .entry idle()\n{ ret; }\n";
    void *module;
    check(((int (*)(void **, const void *))function("cuModuleLoadData"))(&module, image));
    check(((int (*)(void **, void *, const char *))function("cuModuleGetFunction"))(&kernel, module, "idle"));
    *(void **)&launch = function("cuLaunchKernel");
}

static void prepare_pairs(long live)
{
    *(void **)&alloc = function("cuMemAlloc_v2");
    *(void **)&release = function("cuMemFree_v2");
    uint64_t pointer;
    for (long i = 0; i < live; i++) check(alloc(&pointer, 1024));
}

static void prepare_streams(void)
{
    *(void **)&alloc_async = function("cuMemAllocAsync");
    *(void **)&release_async = function("cuMemFreeAsync");
    *(void **)&synchronize = function("cuStreamSynchronize");
}

static double launches(void)
{
    const double start = now_ns(CLOCK_MONOTONIC);
    for (long i = 0; i < LAUNCHES; i++) (void)launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return (now_ns(CLOCK_MONOTONIC) - start) / LAUNCHES;
}

static double pairs(void)
{
    uint64_t pointer;
    const double start = now_ns(CLOCK_MONOTONIC);
    for (long i = 0; i < PAIRS; i++) {
        check(alloc(&pointer, 1024));
        check(release(pointer));
    }
    return (now_ns(CLOCK_MONOTONIC) - start) / PAIRS;
}

static double stream_pairs(void)
{
    uint64_t pointer;
    const double start = now_ns(CLOCK_MONOTONIC);
    for (long i = 0; i < PAIRS; i++) {
        check(alloc_async(&pointer, 1024, NULL));
        check(release_async(pointer, NULL));
    }
    const double took = now_ns(CLOCK_MONOTONIC) - start;
    check(synchronize(NULL));
    return took / PAIRS;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void answer_rounds(double (*piece)(void))
{
    while (getchar() != EOF) {
        double pieces[PIECES];
        (void)piece(); /* the other program has had the caches in between */
        for (int i = 0; i < PIECES; i++) pieces[i] = piece();
        qsort(pieces, PIECES, sizeof *pieces, ascending);
        printf("%.2f\n", pieces[PIECES / 10]);
        fflush(stdout);
    }
}

int main(int count, char **argument)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || count < 2) return 2;
    if (strcmp(argument[1], "start") == 0) {
        check(((int (*)(unsigned))function("cuInit"))(0));
        printf("%.1f\n", now_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e3);
        return 0;
    }
    open_device();
    prepare_launches();
    if (strcmp(argument[1], "launch") == 0) {
        answer_rounds(launches);
    } else if (strcmp(argument[1], "stream") == 0) {
        prepare_streams();
        answer_rounds(stream_pairs);
    } else {
        prepare_pairs(atol(argument[2]));
        answer_rounds(pairs);
    }
    return 0;
}
