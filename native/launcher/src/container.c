/* SPDX-License-Identifier: Apache-2.0
 *
 * Both sides of the fork: see container.h, and launcher.c for what a container is.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "container.h"
#include "root.h"

static sigset_t handled;

void container_block_signals(void)
{
    sigemptyset(&handled);
    sigaddset(&handled, SIGTERM);
    sigaddset(&handled, SIGUSR1);
    sigaddset(&handled, SIGCHLD);
    sigprocmask(SIG_BLOCK, &handled, NULL);
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

int container_attend(pid_t program)
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
    if (write(report, message, strlen(message)) < 0) _exit(CONTAINER_START_ERROR);
    _exit(CONTAINER_START_ERROR);
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
    _exit(container_attend(program));
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
    if (pid == 0 && root_map_ids(uid, gid) < 0) _exit(CONTAINER_START_ERROR);
    if (pid >= 0) return pid;
    launch->own_pids = false;
    return fork();
}

pid_t container_start(struct launch *launch, char *message, size_t size)
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
        return container_start(launch, message, size);
    }
    return -1;
}
