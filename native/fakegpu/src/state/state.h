/* The state that all processes of the simulated machine share: a ledger of memory per card and process, a clock of kernels per card,
 * and health events. One mapped file; a robust lock: a process that is killed leaves a state that the next one repairs.
 */
#ifndef FAKEGPU_STATE_H
#define FAKEGPU_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "card/clock.h"
#include "machine/machine.h"
#include "card/mig.h"
#include "card/value.h"

enum { FG_EVENTS = 256 };

struct fg_process {
    int32_t pid; /* 0: free; as its own pid namespace counts */
    uint64_t start_time;
    uint64_t pid_namespace; /* containers all have a process 1: a pid means nothing in another namespace */
    uint64_t used_bytes[FG_MAX_DEVICES];
    bool context[FG_MAX_DEVICES]; /* has, or had, a context: it is a compute process of that card */
};

struct fg_card_state {
    char uuid[96];
    uint64_t total_bytes, used_bytes, peak_bytes;
    bool lost;
    bool unplugged; /* lost, and not listed by the next nvmlInit */
    _Atomic int64_t values[FG_VALUES];
    struct fg_mig_state mig;
    struct fg_clock clock; /* CLOCK_MONOTONIC */
};

struct fg_event {
    int card;
    uint64_t type, data;
};

/* Memory that processes share by handle: it is on the card as long as one of them holds it. */
enum { FG_SHARED = 1024 };
struct fg_shared {
    uint32_t generation; /* of the entry: a handle of an earlier one is stale */
    bool live;
    int32_t card;
    int32_t charged_to; /* the process in whose bytes it is counted: its maker, then another holder */
    uint64_t bytes;
    uint64_t holders[FG_MAX_PROCESSES / 64];
};

struct fg_state {
    uint32_t magic, version;
    char boot_id[40]; /* clocks and pids of an earlier boot mean nothing */
    int64_t since_1970_ns; /* what CLOCK_MONOTONIC lacks of the time of day, when the state was made: stamps of one sample are equal */
    pthread_mutex_t lock;
    _Atomic uint32_t event_count; /* ever posted; the futex that waiters sleep on */
    struct fg_event events[FG_EVENTS];
    struct fg_card_state cards[FG_MAX_DEVICES];
    struct fg_shared shared[FG_SHARED];
    int32_t process_count; /* entries from here on have never been used */
    struct fg_process processes[FG_MAX_PROCESSES];
};
_Static_assert(offsetof(struct fg_state, lock) == 56, "tests/native/machine.py reads the lock's owner there");

/* The state of the machine, mapped; NULL if it cannot be. */
struct fg_state *fg_state(const struct fg_machine *machine);

/* The file of the mapped state; NULL: none is mapped. */
const char *fg_state_path(void);

void fg_lock(struct fg_state *state);
void fg_unlock(struct fg_state *state);

/* Posts a health event of a card. */
void fg_post_event(struct fg_state *state, int card, uint64_t type, uint64_t data);

int64_t fg_now_ns(void);
void fg_sleep_until(int64_t at_ns);

#endif
