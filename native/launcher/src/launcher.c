/* SPDX-License-Identifier: Apache-2.0
 *
 * hami-launcher: starts one container of the simulated kubelet and stays as its parent, so that
 * the container outlives a killed kubelet and its exit code is still known afterwards.
 *
 *   hami-launcher run LAUNCH_FILE PID_FILE EXIT_FILE
 *   hami-launcher probe DIRECTORY
 *
 * run: one line on stdout, "started PID" or "error TEXT". PID_FILE holds
 * "<launcher pid> <its start> <container pid> <its start>" (starts as in /proc/PID/stat, field 22);
 * EXIT_FILE, made when the container has ended, "<exit code> <unix time in nanoseconds> <text>",
 * with 128+signal as exit code, as container runtimes do, and a text only for a failed start.
 * SIGTERM is passed on to the container's program; SIGUSR1 kills it. Whatever the container left
 * running is killed when its program ends.
 *
 * A container with a root of its own has a pid namespace of its own, whose process 1 is ours: it
 * starts the program, passes SIGTERM on to it (to process 1 itself it would mean nothing), reaps
 * orphans, and ends with the program's exit code. "container pid" is the program's on the host. Where
 * the kernel refuses that, the container shares the machine's pids.
 *
 * probe: prints "namespace" if a root can be built on the empty DIRECTORY, else "pathmap TEXT".
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "container.h"
#include "launch.h"
#include "root.h"

/* Writes `text` to `path` by rename, so that a reader sees all of it or none. */
static int write_renamed(const char *path, const char *text)
{
    char temporary[4096];
    size_t length = strlen(text);
    int fd, error = 0;

    if (snprintf(temporary, sizeof(temporary), "%s.new", path) >= (int)sizeof(temporary)) return -ENAMETOOLONG;
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return -errno;
    if (write(fd, text, length) != (ssize_t)length) error = -EIO;
    close(fd);
    if (error == 0 && rename(temporary, path) < 0) error = -errno;
    return error;
}

/* Start time of a process in clock ticks since boot, or 0; with the pid it names a process for
 * good, which the pid alone does not. */
static unsigned long long start_ticks(pid_t pid)
{
    char path[64], text[1024], *field;
    unsigned long long ticks = 0;
    size_t length;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    if (!file) return 0;
    length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    field = strrchr(text, ')'); /* the name may hold blanks; field 3 follows it */
    for (int i = 3; field && i <= 22; i++) field = strchr(field + 1, ' ');
    if (field) ticks = strtoull(field, NULL, 10);
    return ticks;
}

static int write_pids(const char *path, pid_t container)
{
    char text[128];

    snprintf(text, sizeof(text), "%d %llu %d %llu\n", (int)getpid(), start_ticks(getpid()), (int)container,
             container ? start_ticks(container) : 0);
    return write_renamed(path, text);
}

static int write_exit(const char *path, int code, const char *text)
{
    char line[1200];
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(line, sizeof(line), "%d %lld%09ld %.1024s\n", code, (long long)now.tv_sec, now.tv_nsec, text);
    return write_renamed(path, line);
}

static void report(const char *event, const char *text)
{
    printf("%s %s\n", event, text);
    fflush(stdout);
    fclose(stdout);
}

/* Kills what the container left behind; we are its subreaper, so all of it ends up with us. */
static void kill_leftovers(pid_t container)
{
    char path[64], pid[32];
    bool found = true;

    kill(-container, SIGKILL);
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    while (found) {
        FILE *children = fopen(path, "re");

        found = false;
        while (children && fscanf(children, "%31s", pid) == 1) found = kill((pid_t)atoi(pid), SIGKILL) == 0 || found;
        if (children) fclose(children);
        while (waitpid(-1, NULL, found ? 0 : WNOHANG) > 0);
    }
}

/* The program that process 1 of a container started, as a pid of ours; process 1 itself where the
 * program has ended already. */
static pid_t program_of(const struct launch *launch, pid_t container)
{
    char path[64];
    int program = 0;
    FILE *children;

    if (!launch->own_pids) return container;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)container, (int)container);
    children = fopen(path, "re");
    if (children && fscanf(children, "%d", &program) != 1) program = 0;
    if (children) fclose(children);
    return program > 0 ? program : container;
}

/* The container's cgroup is over, and its parents where nothing else is in them: the pod's, the node's. */
static void remove_cgroup(const char *cgroup)
{
    char path[4096];

    if (!cgroup || snprintf(path, sizeof(path), "%s", cgroup) >= (int)sizeof(path)) return;
    for (int level = 0; level < 3 && rmdir(path) == 0; level++) {
        char *slash = strrchr(path, '/');

        if (!slash) return;
        *slash = '\0';
    }
}

static int run(const char *launch_file, const char *pid_file, const char *exit_file)
{
    char message[1100] = "", number[32];
    struct launch launch;
    int error;
    pid_t container = -1, program;

    container_block_signals();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Before the fork: a new kubelet must find us even if this one dies now. */
    error = write_pids(pid_file, 0);
    if (error == 0) error = launch_read(launch_file, &launch);
    if (error < 0) {
        snprintf(message, sizeof(message), "%s: %s", launch_file, strerror(-error));
    } else {
        launch.own_pids = launch.rootfs != NULL;
        container = container_start(&launch, message, sizeof(message));
    }
    if (container < 0) {
        remove_cgroup(error < 0 ? NULL : launch.cgroup);
        write_exit(exit_file, CONTAINER_START_ERROR, message);
        report("error", message);
        return 1;
    }
    program = program_of(&launch, container);
    write_pids(pid_file, program);
    snprintf(number, sizeof(number), "%d", (int)program);
    report("started", number);
    error = container_attend(container);
    kill_leftovers(container);
    remove_cgroup(launch.cgroup);
    return write_exit(exit_file, error, "") < 0;
}

static int probe(const char *directory)
{
    char message[1024] = "";
    struct launch launch = {.rootfs = directory};
    int error = root_unshare(message, sizeof(message));

    if (error == 0) error = root_enter(&launch, message, sizeof(message));
    if (error < 0)
        printf("pathmap %s\n", message);
    else
        printf("namespace\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "run") == 0) return run(argv[2], argv[3], argv[4]);
    if (argc == 3 && strcmp(argv[1], "probe") == 0) return probe(argv[2]);
    fprintf(stderr, "usage: %s run LAUNCH_FILE PID_FILE EXIT_FILE | probe DIRECTORY\n", argv[0]);
    return 2;
}
