#include "state/shared.h"

#include "state/holder.h"

static int index_of_self(struct fg_state *state)
{
    struct fg_process *self = fg_self(state);
    return self != NULL ? (int)(self - state->processes) : -1;
}

int fg_shared_new(struct fg_state *state, int card, uint64_t bytes)
{
    const int self = index_of_self(state);
    int entry = 0;
    while (entry < FG_SHARED && state->shared[entry].live) entry++;
    if (entry == FG_SHARED || self < 0) return -1;
    struct fg_shared *shared = &state->shared[entry];
    *shared = (struct fg_shared){.generation = shared->generation + 1, .live = true, .card = card, .charged_to = self, .bytes = bytes};
    fg_holder_set(shared, self, true);
    return entry;
}

bool fg_shared_hold(struct fg_state *state, int entry, uint32_t generation)
{
    const int self = index_of_self(state);
    if (self < 0 || entry < 0 || entry >= FG_SHARED || !state->shared[entry].live || state->shared[entry].generation != generation)
        return false;
    fg_holder_set(&state->shared[entry], self, true);
    return true;
}

void fg_shared_drop(struct fg_state *state, int entry)
{
    const int self = index_of_self(state);
    if (self >= 0 && fg_holder_is(&state->shared[entry], self)) fg_holder_leave(state, &state->shared[entry], self);
}
