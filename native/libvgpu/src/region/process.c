#include "region/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct process_stat {
    char state;
    long threads;
    unsigned long long start_time;
};

/* 0, or -errno: -ENOENT when there is no such process (or no /proc). */
static int read_stat(pid_t pid, struct process_stat *stat)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -errno;
    const ssize_t length = read(file, text, sizeof text - 1);
    const int error = errno;
    close(file);
    if (length <= 0) return length < 0 ? -error : -ENOENT;
    text[length] = '\0';
    /* The name may hold blanks and parentheses; the last ')' ends it. Fields 3, 20 and 22 follow (proc(5)). */
    const char *name_end = strrchr(text, ')');
    if (name_end == NULL) return -EINVAL;
    const int fields = sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                              &stat->state, &stat->threads, &stat->start_time);
    return fields == 3 ? 0 : -EINVAL;
}

uint64_t vgpu_process_start_time(pid_t pid)
{
    struct process_stat stat;
    return read_stat(pid, &stat) == 0 ? stat.start_time : 0;
}

bool vgpu_process_alive(pid_t pid, uint64_t start_time)
{
    struct process_stat stat;
    const int error = read_stat(pid, &stat);
    if (error == -ENOENT || error == -ESRCH) return vgpu_process_start_time(getpid()) == 0 && (kill(pid, 0) == 0 || errno == EPERM);
    if (error != 0) return true; /* not known to be dead */
    if (stat.state == 'X' || (stat.state == 'Z' && stat.threads <= 1)) return false;
    return start_time == 0 || stat.start_time == start_time;
}

uint32_t vgpu_process_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint32_t)status.st_ino : 0; /* an unsigned int in the kernel */
}

pid_t vgpu_process_host_pid(uint32_t pid_namespace)
{
    /* The initial pid namespace has a fixed number (linux/proc_ns.h, PROC_PID_INIT_INO). */
    static const uint32_t initial_namespace = 0xEFFFFFFCU;
    return pid_namespace == initial_namespace ? getpid() : 0;
}

/* "NSpid:	4711	12": from the namespace of the reader's /proc inwards (proc(5)). */
static int pids_of_namespaces(unsigned int *pids, int room)
{
    char line[256];
    int count = 0;
    FILE *status = fopen("/proc/self/status", "re");
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "NSpid:", 6) != 0) continue;
        char *at = line + 6, *end;
        for (unsigned long pid = strtoul(at, &end, 10); end != at && count < room; pid = strtoul(at, &end, 10)) {
            pids[count++] = (unsigned int)pid;
            at = end;
        }
        break;
    }
    if (status != NULL) fclose(status);
    if (count == 0 && room > 0) pids[count++] = (unsigned int)getpid();
    return count;
}

int vgpu_process_own_pids(unsigned int *pids, int room)
{
    int count = pids_of_namespaces(pids, room);
    char line[64];
    FILE *written = fopen(VGPU_PIDS_PATH, "re");
    const uint64_t started = written != NULL ? vgpu_process_start_time(getpid()) : 0;
    while (written != NULL && count < room && fgets(line, sizeof line, written) != NULL) {
        unsigned int inner, outer;
        unsigned long long since = 0; /* older agents write none */
        if (sscanf(line, "%u %u %llu", &inner, &outer, &since) < 2 || inner != (unsigned int)getpid()) continue;
        /* Containers that have the slice together have equal pids. */
        if (since == 0 || started == 0 || since == started) pids[count++] = outer;
    }
    if (written != NULL) fclose(written);
    return count;
}
