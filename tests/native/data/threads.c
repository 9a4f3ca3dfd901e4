/* Threads that launch, allocate, free and change contexts at once, on two devices: for the thread sanitizer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 300 };

static _Atomic int finished;
static pthread_barrier_t all_ready; /* the first launches on both devices are made at once */

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*allocate)(uint64_t *, size_t);
static int (*release)(uint64_t);
static int (*memory_info)(size_t *, size_t *);
static int (*load)(void **, const void *);
static int (*unload)(void *);
static int (*function_of)(void **, void *, const char *);
static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#define check(call) must(call, #call)

static void must(int result, const char *call)
{
    if (result == 0) return;
    fprintf(stderr, "%s answered %d\n", call, result);
    exit(3);
}

static void *work(void *argument)
{
    static const char image[] = ".version 6.0\n.target sm_50\n.visible .entry idle()\n{ ret; }\n";
    const int number = (int)(intptr_t)argument;
    void *context, *module, *kernel;
    check(retain(&context, number % 2));
    check(set_current(context));
    check(load(&module, image));
    check(function_of(&kernel, module, "idle"));
    pthread_barrier_wait(&all_ready);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t block;
        size_t available, total;
        check(launch(kernel, 1 + (unsigned)(i % 3), 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        check(allocate(&block, 4096));
        check(memory_info(&available, &total));
        check(release(block));
        if (i % 16 == 0) check(set_current(context));
    }
    check(unload(module));
    return NULL;
}

/* As daemons do: the library opens its region again. */
static void *close_region(void *region)
{
    char name[64], target[4096];
    while (!finished) {
        for (int file = 3; file < 64; file++) {
            snprintf(name, sizeof name, "/proc/self/fd/%d", file);
            const ssize_t length = readlink(name, target, sizeof target - 1);
            if (length <= 0) continue;
            target[length] = '\0';
            if (strcmp(target, region) == 0) syscall(SYS_close, file); /* unseen: it is meant to race with other threads */
        }
        usleep(5000);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return 2;
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
    *(void **)&release = dlsym(library, "cuMemFree_v2");
    *(void **)&memory_info = dlsym(library, "cuMemGetInfo_v2");
    *(void **)&load = dlsym(library, "cuModuleLoadData");
    *(void **)&unload = dlsym(library, "cuModuleUnload");
    *(void **)&function_of = dlsym(library, "cuModuleGetFunction");
    *(void **)&launch = dlsym(library, "cuLaunchKernel");
    pthread_t threads[THREADS], closer;
    check(init(0));
    pthread_barrier_init(&all_ready, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i);
    if (count > 1) pthread_create(&closer, NULL, close_region, arguments[1]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    finished = 1;
    if (count > 1) pthread_join(closer, NULL);
    return 0;
}
