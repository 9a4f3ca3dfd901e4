#include "state/account.h"

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
