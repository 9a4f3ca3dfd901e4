#include "shared.h"

static int index_of_self(struct fg_state *state)
{
    struct fg_process *self = fg_self(state);
    return self != NULL ? (int)(self - state->processes) : -1;
}

static void set_holder(struct fg_shared *shared, int process, bool holds)
{
    const uint64_t bit = UINT64_C(1) << (process % 64);
    if (holds)
        shared->holders[process / 64] |= bit;
    else
        shared->holders[process / 64] &= ~bit;
}

static bool holds(const struct fg_shared *shared, int process) { return (shared->holders[process / 64] >> (process % 64) & 1) != 0; }

static int any_holder(const struct fg_shared *shared)
{
    for (int part = 0; part < FG_MAX_PROCESSES / 64; part++)
        if (shared->holders[part] != 0) return part * 64 + __builtin_ctzll(shared->holders[part]);
    return -1;
}

int fg_shared_new(struct fg_state *state, int card, uint64_t bytes, bool is_event)
{
    const int self = index_of_self(state);
    int entry = 0;
    while (entry < FG_SHARED && state->shared[entry].live) entry++;
    if (entry == FG_SHARED || self < 0) return -1;
    struct fg_shared *shared = &state->shared[entry];
    *shared = (struct fg_shared){.generation = shared->generation + 1, .live = true, .is_event = is_event, .card = card,
                                 .charged_to = self, .bytes = bytes, .recorder = -1};
    set_holder(shared, self, true);
    return entry;
}

bool fg_shared_hold(struct fg_state *state, int entry, uint32_t generation)
{
    const int self = index_of_self(state);
    if (self < 0 || entry < 0 || entry >= FG_SHARED || !state->shared[entry].live || state->shared[entry].generation != generation) return false;
    set_holder(&state->shared[entry], self, true);
    return true;
}

/* One holder less: what it was charged with passes to another, or back to the card. */
static void leave(struct fg_state *state, struct fg_shared *shared, int process)
{
    set_holder(shared, process, false);
    const int heir = any_holder(shared);
    if (shared->charged_to == process && shared->bytes > 0) {
        state->processes[process].used_bytes[shared->card] -= shared->bytes;
        if (heir >= 0)
            state->processes[heir].used_bytes[shared->card] += shared->bytes;
        else
            state->cards[shared->card].used_bytes -= shared->bytes;
    }
    shared->charged_to = heir;
    shared->live = heir >= 0;
}

void fg_shared_drop(struct fg_state *state, int entry)
{
    const int self = index_of_self(state);
    if (self >= 0 && holds(&state->shared[entry], self)) leave(state, &state->shared[entry], self);
}

void fg_shared_leave(struct fg_state *state, int process)
{
    for (int entry = 0; entry < FG_SHARED; entry++)
        if (state->shared[entry].live && holds(&state->shared[entry], process)) leave(state, &state->shared[entry], process);
}
