#include "state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAGIC = 0x55504746, VERSION = 10 };

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

const char *fg_state_path(void) { return state_path; }

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

void fg_post_event(struct fg_state *state, int card, uint64_t type, uint64_t data)
{
    fg_lock(state);
    state->events[state->event_count % FG_EVENTS] = (struct fg_event){.card = card, .type = type, .data = data};
    state->event_count++;
    fg_unlock(state);
    syscall(SYS_futex, &state->event_count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
