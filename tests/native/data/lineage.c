/* Children and successors of a CUDA program: each line of output is one process's view of the slice, in MiB.
 *
 *   lineage parent   holds 6 MiB; starts children by vfork and posix_spawn; forks while a thread allocates; then becomes "image"
 *   lineage child    free MiB, then the results of allocating 4 MiB and 1 MiB more
 *   lineage image    what a program that took the place of another by exec sees
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, FORKS = 40 };

static int (*allocate)(uint64_t *, size_t);
static int (*release)(uint64_t);
static int (*memory_info)(size_t *, size_t *);
static _Atomic int stop;

static void open_device(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    if (library == NULL) exit(2);
    *(void **)&allocate = dlsym(library, "cuMemAlloc_v2");
    *(void **)&release = dlsym(library, "cuMemFree_v2");
    *(void **)&memory_info = dlsym(library, "cuMemGetInfo_v2");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    if (init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0) exit(3);
}

static int take(size_t mib)
{
    uint64_t pointer;
    return allocate(&pointer, mib * MIB);
}

static void report(const char *who)
{
    size_t available = 0, total = 0;
    memory_info(&available, &total);
    printf("%s %zu\n", who, available / MIB);
    fflush(stdout);
}

/* A process that was killed is looked for at most ten times a second when somebody asks how much is free. */
static void until_available(size_t mib)
{
    size_t available = 0, total = 0;
    for (int looks = 0; looks < 5000 && available < mib * MIB; looks++) {
        memory_info(&available, &total);
        usleep(1000);
    }
}

static void *churn(void *unused)
{
    uint64_t pointer;
    while (!stop)
        if (allocate(&pointer, 4096) == 0) release(pointer);
    return unused;
}

static int wait_for(pid_t child)
{
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int count, char **argument)
{
    char *const child[] = {argument[0], "child", NULL}, *const image[] = {argument[0], "image", NULL};
    const char *role = count > 1 ? argument[1] : "";
    open_device();
    if (strcmp(role, "child") == 0) {
        report("child");
        const int fits = take(4);
        printf("child %d %d\n", fits, take(1));
        return 0;
    }
    if (strcmp(role, "image") == 0) {
        report("image");
        const int fits = take(10);
        printf("image %d %d\n", fits, take(1));
        return 0;
    }
    if (take(6) != 0) return 4;
    pid_t pid = vfork();
    if (pid == 0) {
        execv(argument[0], child);
        _exit(9);
    }
    wait_for(pid);
    report("after vfork");
    extern char **environ;
    if (posix_spawn(&pid, argument[0], NULL, NULL, child, environ) != 0) return 5;
    wait_for(pid);
    report("after spawn");
    pthread_t thread;
    pthread_create(&thread, NULL, churn, NULL);
    int good = 0;
    for (int i = 0; i < FORKS; i++) {
        pid = fork();
        if (pid == 0) _exit(take(1) == 0 ? 7 : 8); /* without exec, while the other thread may hold any lock */
        good += wait_for(pid) == 7;
    }
    stop = 1;
    pthread_join(thread, NULL);
    printf("forked %d\n", good);
    until_available(4);
    report("after fork");
    execv(argument[0], image);
    return 6;
}
