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
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launch.h"
#include "root.h"

/* What container runtimes report for a container that could not be started. */
#define EXIT_START_ERROR 128

static sigset_t handled;

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

/* stdin from nowhere, stdout and stderr to the log. Returns 0 or -errno. */
static int redirect(const char *log)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

    if (null < 0 || out < 0) return -errno;
    if (dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) return -errno;
    return 0;
}

/* Serves signals until `program` has ended, and reaps whatever else ends; returns its exit code. */
static int attend(pid_t program)
{
    for (;;) {
        int status, signal_number = sigwaitinfo(&handled, NULL);
        pid_t ended;

        if (signal_number == SIGTERM)
            kill(program, SIGTERM);
        else if (signal_number == SIGUSR1)
            kill(program, SIGKILL);
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
            if (ended != program) continue;
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
    }
}

/* Instead of a sentence: this machine gives a container no pids of its own. */
static const char NO_PIDS[] = "\1";

static void refuse(int report, const char *message)
{
    if (write(report, message, strlen(message)) < 0) _exit(EXIT_START_ERROR);
    _exit(EXIT_START_ERROR);
}

/* Becomes the container's program; exec closes `report`. */
static void become_program(const struct launch *launch, int report)
{
    char message[1024];

    setsid();
    sigprocmask(SIG_UNBLOCK, &handled, NULL);
    environ = launch->env;
    execvp(launch->argv[0], launch->argv);
    snprintf(message, sizeof(message), "exec: \"%s\": %s", launch->argv[0],
             errno == ENOENT ? (strchr(launch->argv[0], '/') ? "no such file or directory" : "executable file not found in $PATH")
                             : strerror(errno));
    refuse(report, message);
}

/* Moves this process into the container's cgroup; its children follow. Returns 0 or -errno. */
static int enter_cgroup(const char *cgroup)
{
    char path[4096];
    int fd, error = 0;

    if (snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup) >= (int)sizeof(path)) return -ENAMETOOLONG;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    /* 0 stands for the writer, whatever its pid is in which namespace. */
    if (write(fd, "0", 1) != 1) error = -errno;
    close(fd);
    return error;
}

/* The container's side of the fork; on failure a sentence goes to `report`. */
static void become_container(const struct launch *launch, int report)
{
    char message[1024] = "";
    int error = 0;
    pid_t program;

    /* Without the launcher nobody could stop the container or learn its end. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (launch->cgroup && (error = enter_cgroup(launch->cgroup)) < 0) {
        snprintf(message, sizeof(message), "can't enter the cgroup %s: %s", launch->cgroup, strerror(-error));
        refuse(report, message);
    }
    if (launch->rootfs) {
        error = root_unshare(message, sizeof(message));
        if (error == 0) error = root_enter(launch, message, sizeof(message));
        if (error == ROOT_NO_PROC) refuse(report, NO_PIDS);
    }
    if (error == 0 && (error = redirect(launch->log)) < 0)
        snprintf(message, sizeof(message), "can't open the log %s: %s", launch->log, strerror(-error));
    if (error == 0 && chdir(launch->cwd) < 0) {
        error = -errno;
        snprintf(message, sizeof(message), "can't enter the working directory %s: %s", launch->cwd, strerror(errno));
    }
    if (error < 0) refuse(report, message);
    if (!launch->own_pids) become_program(launch, report);
    setsid();
    program = fork();
    if (program == 0) become_program(launch, report);
    if (program < 0) {
        snprintf(message, sizeof(message), "can't fork: %s", strerror(errno));
        refuse(report, message);
    }
    close(report);
    _exit(attend(program));
}

/* Forks, with launch->own_pids into a pid namespace of the child's own; false there when the kernel
 * refuses one. */
static pid_t fork_container(struct launch *launch)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    pid_t pid;

    if (!launch->own_pids) return fork();
    pid = (pid_t)syscall(SYS_clone, (unsigned long)(CLONE_NEWPID | SIGCHLD), 0, 0, 0, 0);
    if (pid >= 0) return pid;
    /* Without the right to: in a user namespace, in which the user stays who it is. */
    pid = (pid_t)syscall(SYS_clone, (unsigned long)(CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD), 0, 0, 0, 0);
    if (pid == 0 && root_map_ids(uid, gid) < 0) _exit(EXIT_START_ERROR);
    if (pid >= 0) return pid;
    launch->own_pids = false;
    return fork();
}

/* Starts the container; returns its pid, or -1 with a sentence in `message`. */
static pid_t start(struct launch *launch, char *message, size_t size)
{
    int report[2];
    ssize_t length;
    pid_t container;

    if (pipe2(report, O_CLOEXEC) < 0 || (container = fork_container(launch)) < 0) {
        snprintf(message, size, "can't fork: %s", strerror(errno));
        return -1;
    }
    if (container == 0) become_container(launch, report[1]);
    close(report[1]);
    length = read(report[0], message, size - 1);
    close(report[0]);
    if (length <= 0) return container;
    waitpid(container, NULL, 0);
    message[length] = '\0';
    if (launch->own_pids && strcmp(message, NO_PIDS) == 0) {
        launch->own_pids = false;
        return start(launch, message, size);
    }
    return -1;
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

    sigemptyset(&handled);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGUSR1);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Before the fork: a new kubelet must find us even if this one dies now. */
    error = write_pids(pid_file, 0);
    if (error == 0) error = launch_read(launch_file, &launch);
    if (error < 0) {
        snprintf(message, sizeof(message), "%s: %s", launch_file, strerror(-error));
    } else {
        launch.own_pids = launch.rootfs != NULL;
        container = start(&launch, message, sizeof(message));
    }
    if (container < 0) {
        remove_cgroup(error < 0 ? NULL : launch.cgroup);
        write_exit(exit_file, EXIT_START_ERROR, message);
        report("error", message);
        return 1;
    }
    program = program_of(&launch, container);
    write_pids(pid_file, program);
    snprintf(number, sizeof(number), "%d", (int)program);
    report("started", number);
    error = attend(container);
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
