#include "state/holder.h"

void fg_holder_set(struct fg_shared *shared, int process, bool holds)
{
    const uint64_t bit = UINT64_C(1) << (process % 64);
    if (holds)
        shared->holders[process / 64] |= bit;
    else
        shared->holders[process / 64] &= ~bit;
}

bool fg_holder_is(const struct fg_shared *shared, int process) { return (shared->holders[process / 64] >> (process % 64) & 1) != 0; }

static int any_holder(const struct fg_shared *shared)
{
    for (int part = 0; part < FG_MAX_PROCESSES / 64; part++)
        if (shared->holders[part] != 0) return part * 64 + __builtin_ctzll(shared->holders[part]);
    return -1;
}

void fg_holder_leave(struct fg_state *state, struct fg_shared *shared, int process)
{
    fg_holder_set(shared, process, false);
    const int heir = any_holder(shared);
    shared->live = heir >= 0;
    if (shared->charged_to != process) return; /* another one's, who goes on */
    shared->charged_to = heir;
    if (shared->bytes == 0) return;
    state->processes[process].used_bytes[shared->card] -= shared->bytes;
    if (heir >= 0)
        state->processes[heir].used_bytes[shared->card] += shared->bytes;
    else
        state->cards[shared->card].used_bytes -= shared->bytes;
}

void fg_holder_leave_all(struct fg_state *state, int process)
{
    for (int entry = 0; entry < FG_SHARED; entry++)
        if (state->shared[entry].live && fg_holder_is(&state->shared[entry], process))
            fg_holder_leave(state, &state->shared[entry], process);
}
