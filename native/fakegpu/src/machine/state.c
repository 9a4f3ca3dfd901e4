#include "state.h"

#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x55504746, VERSION = 9 };

static const char *state_path; /* of the mapped state */

int64_t fg_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void fg_sleep_until(int64_t at_ns)
{
    const struct timespec at = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

static void read_boot_id(char text[40])
{
    memset(text, 0, 40);
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    if (read(file, text, 36) != 36) text[0] = '\0';
    close(file);
}

/* Of a state that is all zeroes. */
static void initialise(struct fg_state *state, const struct fg_machine *machine, const char *boot_id)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    memcpy(state->boot_id, boot_id, sizeof state->boot_id);
    for (int i = 0; i < machine->card_count; i++) {
        snprintf(state->cards[i].uuid, sizeof state->cards[i].uuid, "%s", machine->cards[i].uuid);
        state->cards[i].total_bytes = machine->cards[i].memory_bytes;
        fg_mig_begin(&state->cards[i].mig, &machine->cards[i]);
        for (int value = 0; value < FG_VALUES; value++) state->cards[i].values[value] = machine->cards[i].values[value];
    }
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    state->since_1970_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - fg_now_ns();
    state->version = VERSION;
    state->magic = MAGIC;
}

static bool same_machine(const struct fg_state *state, const struct fg_machine *machine, const char *boot_id)
{
    if (state->magic != MAGIC || state->version != VERSION || strcmp(state->boot_id, boot_id) != 0) return false;
    for (int i = 0; i < machine->card_count; i++)
        if (strcmp(state->cards[i].uuid, machine->cards[i].uuid) != 0 || state->cards[i].total_bytes != machine->cards[i].memory_bytes ||
            state->cards[i].mig.began_as != fg_mig_mark(&machine->cards[i]))
            return false;
    return true;
}

/* Maps the file; under flock, so nobody sees it half made. */
static struct fg_state *map_state(const struct fg_machine *machine)
{
    state_path = machine->state_path;
    const int file = open(state_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct fg_state *state = NULL;
    if (file >= 0 && flock(file, LOCK_EX) == 0) {
        char boot_id[40];
        struct stat status;
        read_boot_id(boot_id);
        (void)fchmod(file, 0666); /* containers run as all kinds of users */
        if (fstat(file, &status) == 0 && (status.st_size >= (off_t)sizeof *state || ftruncate(file, sizeof *state) == 0))
            state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (state == MAP_FAILED) state = NULL;
        if (state != NULL && !same_machine(state, machine, boot_id)) {
            if (status.st_size != 0) memset(state, 0, sizeof *state); /* a new file is left sparse: it is large */
            initialise(state, machine, boot_id);
        }
    }
    if (state == NULL) fprintf(stderr, "fakegpu: state %s: %s\n", machine->state_path, strerror(errno));
    if (file >= 0) {
        /* The mapping keeps the open file alive, and with it the lock. */
        flock(file, LOCK_UN);
        close(file);
    }
    return state;
}

struct fg_state *fg_state(const struct fg_machine *machine)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static struct fg_state *mapped;
    pthread_mutex_lock(&once);
    if (mapped == NULL) mapped = map_state(machine);
    pthread_mutex_unlock(&once);
    return mapped;
}

/* A killed owner may have changed one of "process" and "card" and not the other: the processes are the truth. */
static void repair(struct fg_state *state)
{
    for (int card = 0; card < FG_MAX_DEVICES; card++) {
        state->cards[card].used_bytes = 0;
        for (int i = 0; i < state->process_count; i++)
            if (state->processes[i].pid != 0) state->cards[card].used_bytes += state->processes[i].used_bytes[card];
    }
}

void fg_lock(struct fg_state *state)
{
    if (pthread_mutex_lock(&state->lock) != EOWNERDEAD) return;
    repair(state);
    pthread_mutex_consistent(&state->lock);
}

void fg_unlock(struct fg_state *state) { pthread_mutex_unlock(&state->lock); }

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
    if (name_end == NULL ||
        sscanf(name_end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu", &state, &threads,
               &start) != 3)
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
    return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)sizeof *state + (process - state->processes), .l_len = 1};
}

static void hold_life(const struct fg_state *state, const struct fg_process *process)
{
    static int file = -1;
    if (file >= 0) close(file); /* in a fork child: our parent's */
    file = open(state_path, O_RDWR | O_CLOEXEC);
    struct flock life = life_of(state, process);
    if (file < 0 || fcntl(file, F_OFD_SETLK, &life) != 0) fprintf(stderr, "fakegpu: state %s: %s\n", state_path, strerror(errno));
}

/* A second file, for locks of the other kind: they name their owner by its pid in the pid namespace of the process that asks. Such a lock goes
 * when its owner closes any descriptor of that file, so each process has one, and leaves it open. */
static int pid_file = -1;

static int opened_pid_file(void)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s.pids", state_path);
    if (pid_file >= 0) return pid_file;
    pid_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (pid_file >= 0) (void)fchmod(pid_file, 0666); /* not ours to change: somebody did already */
    return pid_file;
}

pid_t fg_visible_pid(const struct fg_state *state, const struct fg_process *process)
{
    if (process->pid == 0 || process->pid_namespace == own_namespace()) return process->pid;
    struct flock life = life_of(state, process);
    return fcntl(opened_pid_file(), F_GETLK, &life) == 0 && life.l_type != F_UNLCK ? life.l_pid : 0;
}

static bool is_locked(const struct fg_state *state, const struct fg_process *process)
{
    const int file = open(state_path, O_RDWR | O_CLOEXEC);
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
    fg_shared_leave(state, (int)(process - state->processes));
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

bool fg_take(struct fg_state *state, int card, uint64_t bytes)
{
    struct fg_process *self = fg_self(state);
    struct fg_card_state *taken = &state->cards[card];
    if (self == NULL) return false;
    if (bytes > taken->total_bytes - taken->used_bytes) fg_sweep(state);
    if (bytes > taken->total_bytes - taken->used_bytes) return false;
    self->used_bytes[card] += bytes;
    taken->used_bytes += bytes;
    if (taken->used_bytes > taken->peak_bytes) taken->peak_bytes = taken->used_bytes;
    return true;
}

void fg_give(struct fg_state *state, int card, uint64_t bytes)
{
    struct fg_process *self = fg_self(state);
    if (self == NULL || self->used_bytes[card] < bytes) return; /* a fork child gives back what only its parent holds */
    self->used_bytes[card] -= bytes;
    state->cards[card].used_bytes -= bytes;
}

static int index_of(const struct fg_state *state, const struct fg_process *process) { return (int)(process - state->processes); }

struct fg_clock *fg_clock_now(struct fg_state *state, int card)
{
    struct fg_clock *clock = &state->cards[card].clock;
    fg_clock_advance(clock, &fg_machine()->timing, fg_now_ns());
    return clock;
}

int64_t fg_queue_kernel(struct fg_state *state, int card, int64_t length_ns)
{
    struct fg_process *self = fg_self(state);
    return self != NULL ? fg_clock_submit(fg_clock_now(state, card), index_of(state, self), length_ns) : 0;
}

int64_t fg_reached_ns(struct fg_state *state, int card, int64_t mark)
{
    fg_lock(state);
    struct fg_process *self = fg_self(state);
    const int64_t reached = self != NULL ? fg_clock_reached_ns(fg_clock_now(state, card), index_of(state, self), mark) : fg_now_ns();
    fg_unlock(state);
    return reached;
}

int64_t fg_left_ns(struct fg_state *state, int card, int64_t mark)
{
    fg_lock(state);
    struct fg_process *self = fg_self(state);
    const int64_t left = self != NULL ? fg_clock_left_ns(fg_clock_now(state, card), index_of(state, self), mark) : 0;
    fg_unlock(state);
    return left;
}

void fg_sleep_until_reached(struct fg_state *state, int card, int64_t mark)
{
    /* Others may take turns in between, or come and go: the earliest possible end is waited for, then looked again. */
    static const int64_t SHORTEST_NS = 20000;
    for (;;) {
        const int64_t left = fg_left_ns(state, card, mark);
        if (left == 0) return;
        fg_sleep_until(fg_now_ns() + (left > SHORTEST_NS ? left : SHORTEST_NS));
    }
}

unsigned int fg_utilisation(const struct fg_machine *machine, const struct fg_sample ring[FG_SAMPLES])
{
    const int64_t shown = fg_sample_shown(&machine->timing, fg_now_ns(), machine->sample_delay_ns, machine->sample_missing_percent);
    return shown < 0 ? 0 : (unsigned int)(fg_sample_busy_ns(ring, shown) * 100 / machine->timing.sample_ns);
}

void fg_post_event(struct fg_state *state, int card, uint64_t type, uint64_t data)
{
    fg_lock(state);
    state->events[state->event_count % FG_EVENTS] = (struct fg_event){.card = card, .type = type, .data = data};
    state->event_count++;
    fg_unlock(state);
    syscall(SYS_futex, &state->event_count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
