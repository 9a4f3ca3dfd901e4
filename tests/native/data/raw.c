/* A program without the driver's library, static: it talks to what libcuda talks to, here the machine's state. Answers as escape.c does:
 * takes 8 MiB, then as many bytes as each line of its input has. */
#include <stdio.h>

#include "state/account.h"

static int take(struct fg_state *state, uint64_t bytes)
{
    fg_lock(state);
    fg_self(state)->context[0] = true;
    const bool taken = fg_take(state, 0, bytes);
    fg_unlock(state);
    return taken ? 0 : 2;
}

int main(void)
{
    struct fg_state *state = fg_state(fg_machine());
    uint64_t bytes = 8 << 20;
    do {
        printf("%d %zu\n", take(state, bytes), (size_t)state->cards[0].total_bytes);
        fflush(stdout);
    } while (scanf("%zu", &bytes) == 1);
    return 0;
}
