#include "state/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state/holder.h"
#include "state/own_file.h"

/* Start time of a process, 0 when it is dead: field 22 of /proc/<pid>/stat, after a name that may hold anything. */
static uint64_t start_time_of(pid_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t length = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    if (file >= 0) close(file);
    if (length <= 0) return 0;
    text[length] = '\0';
    char state = 'X';
    long threads = 0;
    unsigned long long start = 0;
    const char *name_end = strrchr(text, ')');
    if (name_end == NULL || sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu", &state,
                                   &threads, &start) != 3)
        return 0;
    return state == 'X' || (state == 'Z' && threads <= 1) ? 0 : start;
}

/* The pid namespace that this process counts in, by inode number. */
static uint64_t own_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/* The byte of the state file, far behind its content, that an entry's process keeps locked: the lock goes when the process does,
 * whatever killed it, and can be seen from every pid namespace. */
static struct flock life_of(const struct fg_state *state, const struct fg_process *process)
{
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)sizeof *state + (process - state->processes), .l_len = 1};
}

/* The lock is the open file's, and the mapping keeps that open, without a descriptor: a program that closes everything can't close it, and
 * gets no number for a file of its own that we would close in its fork children. These do not inherit the mapping, so that our lock does
 * not outlive us in them. */
static void hold_life(const struct fg_state *state, const struct fg_process *process)
{
    const int file = open(fg_state_path(), O_RDWR | O_CLOEXEC);
    struct flock life = life_of(state, process);
    const bool locked = file >= 0 && fcntl(file, F_OFD_SETLK, &life) == 0;
    void *page = locked ? mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (page == MAP_FAILED || madvise(page, 1, MADV_DONTFORK) != 0)
        fprintf(stderr, "fakegpu: state %s: %s\n", fg_state_path(), strerror(errno));
    if (file >= 0) close(file);
}

/* A second file, for locks of the other kind: they name their owner by its pid in the pid namespace of the process that asks. Such a lock
 * goes when its owner closes any descriptor of that file, so each process has one, and leaves it open. A program that closed it has
 * perhaps got the number for another file, which is not ours to lock. */
static int opened_pid_file(void)
{
    static struct fg_own_file file = {.number = -1};
    char path[PATH_MAX + 8];
    if (fg_is_own_file(&file)) return file.number;
    snprintf(path, sizeof path, "%s.pids", fg_state_path());
    file = fg_own_file(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (file.number >= 0) (void)fchmod(file.number, 0666); /* not ours to change: somebody did already */
    return file.number;
}

pid_t fg_visible_pid(const struct fg_state *state, const struct fg_process *process)
{
    if (process->pid == 0 || process->pid_namespace == own_namespace()) return process->pid;
    struct flock life = life_of(state, process);
    return fcntl(opened_pid_file(), F_GETLK, &life) == 0 && life.l_type != F_UNLCK ? life.l_pid : 0;
}

static bool is_locked(const struct fg_state *state, const struct fg_process *process)
{
    const int file = open(fg_state_path(), O_RDWR | O_CLOEXEC);
    struct flock life = life_of(state, process);
    const bool locked = file < 0 || fcntl(file, F_OFD_GETLK, &life) != 0 || life.l_type != F_UNLCK;
    if (file >= 0) close(file);
    return locked;
}

static bool is_alive(const struct fg_state *state, const struct fg_process *process, uint64_t namespace)
{
    if (process->pid_namespace == namespace) return start_time_of(process->pid) == process->start_time;
    return is_locked(state, process);
}

static void free_process(struct fg_state *state, struct fg_process *process)
{
    fg_holder_leave_all(state, (int)(process - state->processes));
    for (int card = 0; card < FG_MAX_DEVICES; card++) {
        state->cards[card].used_bytes -= process->used_bytes[card];
        process->used_bytes[card] = 0;
        process->context[card] = false;
        fg_clock_advance(&state->cards[card].clock, &fg_machine()->timing, fg_now_ns());
        fg_clock_drop(&state->cards[card].clock, (int)(process - state->processes));
    }
    process->pid = 0;
}

void fg_sweep(struct fg_state *state)
{
    const uint64_t namespace = own_namespace();
    for (int i = 0; i < state->process_count; i++) {
        struct fg_process *process = &state->processes[i];
        if (process->pid != 0 && !is_alive(state, process, namespace)) free_process(state, process);
    }
}

struct fg_process *fg_self(struct fg_state *state)
{
    static struct fg_process *cached;
    static pid_t cached_pid;
    const pid_t pid = getpid();
    if (cached != NULL && cached_pid == pid && cached->pid == pid) return cached;
    const uint64_t namespace = own_namespace();
    fg_sweep(state);
    struct fg_process *free_entry = NULL;
    for (int i = 0; i < state->process_count; i++) {
        struct fg_process *process = &state->processes[i];
        if (process->pid == pid && process->pid_namespace == namespace) free_process(state, process); /* our image before an exec */
        if (process->pid == 0 && free_entry == NULL) free_entry = process;
    }
    if (free_entry == NULL && state->process_count == FG_MAX_PROCESSES) return NULL;
    if (free_entry == NULL) free_entry = &state->processes[state->process_count++];
    free_entry->start_time = start_time_of(pid);
    free_entry->pid_namespace = namespace;
    hold_life(state, free_entry);
    struct flock life = life_of(state, free_entry);
    (void)fcntl(opened_pid_file(), F_SETLK, &life); /* without it the process is seen in its own namespace alone */
    free_entry->pid = pid;
    cached = free_entry;
    cached_pid = pid;
    return cached;
}
