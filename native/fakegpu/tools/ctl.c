/* fakegpu-ctl: makes the simulated cards misbehave, and shows the machine's ledger.
 *
 *   fakegpu-ctl show                one JSON object: cards (total, used, peak, utilisation, clock, lost) and processes (memory, and a
 * counter of computing time; it begins anywhere) fakegpu-ctl xid CARD CODE       posts an XID event (critical) on a card fakegpu-ctl ecc
 * CARD            posts a double-bit ECC event fakegpu-ctl lose CARD           the card falls off the bus (XID 79 is posted, calls answer
 * "GPU is lost") fakegpu-ctl restore CARD        it is back fakegpu-ctl unplug CARD         it is lost, and programs that initialise NVML
 * from now on do not find it fakegpu-ctl plug CARD           it is there again, for programs that initialise NVML from now on fakegpu-ctl
 * mig-busy CARD GI    a program runs on that GPU instance: it can't be destroyed fakegpu-ctl mig-idle CARD GI    it has ended fakegpu-ctl
 * mig-clear CARD      all instances are gone, as after a reset of the card fakegpu-ctl set CARD NAME VALUE what NVML answers for a quantity
 * that nothing here measures; "unknown": that it is not supported fakegpu-ctl reset-peak          forgets the highest use so far
 *
 * CARD is an index in the configuration or a uuid (or its beginning). FAKEGPU_CONFIG names the machine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_abi.h"
#include "state/account.h"

static void show_process(const struct fg_machine *machine, const struct fg_state *state, int index, const char *before)
{
    const struct fg_process *process = &state->processes[index];
    const pid_t pid = fg_visible_pid(state, process);
    printf("%s\n  {\"pid\": %d, \"computed_ns\": [", before, pid != 0 ? pid : process->pid);
    for (int card = 0; card < machine->card_count; card++)
        printf("%s%lld", card > 0 ? ", " : "", (long long)state->cards[card].clock.queues[index].done_ns);
    printf("], \"used_bytes\": [");
    for (int card = 0; card < machine->card_count; card++)
        printf("%s%llu", card > 0 ? ", " : "", (unsigned long long)process->used_bytes[card]);
    printf("]}");
}

static void show_mig(const struct fg_mig_state *mig)
{
    const char *before = "";
    printf(", \"mig_mode\": %s, \"mig\": [", mig->mode ? "true" : "false");
    for (int i = 0; i < FG_MAX_MIG; i++) {
        const struct fg_gpu_instance *instance = &mig->instances[i];
        if (!instance->live) continue;
        printf("%s{\"gpu_instance\": %u, \"slices\": %d, \"start\": %u, \"size\": %u, \"busy\": %s, \"devices\": [", before, instance->id,
               instance->slices, instance->start, instance->size, instance->busy ? "true" : "false");
        before = ", ";
        const char *comma = "";
        for (int j = 0; j < FG_MAX_MIG; j++) {
            if (!mig->devices[j].live || mig->devices[j].gpu_instance != instance->id) continue;
            printf("%s\"%s\"", comma, mig->devices[j].uuid);
            comma = ", ";
        }
        printf("]}");
    }
    printf("]");
}

static void show(const struct fg_machine *machine, struct fg_state *state)
{
    fg_lock(state);
    fg_sweep(state);
    printf("{\"cards\": [");
    for (int i = 0; i < machine->card_count; i++) {
        const struct fg_card_state *card = &state->cards[i];
        const struct fg_clock *clock = fg_clock_now(state, i);
        printf("%s\n  {\"index\": %d, \"uuid\": \"%s\", \"total_bytes\": %llu, \"used_bytes\": %llu, \"peak_bytes\": %llu, "
               "\"utilisation_percent\": %u, \"now_ns\": %lld, \"lost\": %s",
               i > 0 ? "," : "", i, card->uuid, (unsigned long long)card->total_bytes, (unsigned long long)card->used_bytes,
               (unsigned long long)card->peak_bytes, fg_utilisation(machine, clock->card_samples), (long long)clock->at_ns,
               card->lost ? "true" : "false");
        show_mig(&card->mig);
        printf("}");
    }
    printf("],\n \"processes\": [");
    const char *before = "";
    for (int i = 0; i < state->process_count; i++) {
        if (state->processes[i].pid == 0) continue;
        show_process(machine, state, i, before);
        before = ",";
    }
    printf("]}\n");
    fg_unlock(state);
}

static int card_of(const struct fg_machine *machine, const char *name)
{
    int all[FG_MAX_DEVICES];
    for (int i = 0; i < machine->card_count; i++) all[i] = i;
    const int card = fg_card_named(machine, all, machine->card_count, name);
    if (card < 0) fprintf(stderr, "fakegpu-ctl: no card %s; wanted: an index below %d or a uuid\n", name, machine->card_count);
    return card;
}

static int set_busy(struct fg_mig_state *mig, const char *id, bool busy)
{
    for (int i = 0; i < FG_MAX_MIG; i++) {
        if (!mig->instances[i].live || mig->instances[i].id != strtoul(id, NULL, 10)) continue;
        mig->instances[i].busy = busy;
        return 0;
    }
    return fprintf(stderr, "fakegpu-ctl: no GPU instance %s on that card\n", id), 1;
}

static int set_value(struct fg_card_state *card, const char *name, const char *text)
{
    const enum fg_value value = fg_value_named(name);
    char *end;
    const long long number = strtoll(text, &end, 10);
    const bool unknown = strcmp(text, "unknown") == 0;
    if (value == FG_VALUES)
        return fprintf(stderr, "fakegpu-ctl: nothing of a card is called %s; native/fakegpu/README.md lists the names\n", name), 1;
    if (!unknown && (*text == '\0' || *end != '\0' || number < 0))
        return fprintf(stderr, "fakegpu-ctl: %s %s: wanted: a number that is not negative, or unknown\n", name, text), 1;
    card->values[value] = unknown ? FG_UNKNOWN : number;
    return 0;
}

static int act_on_card(const struct fg_machine *machine, struct fg_state *state, int argc, char **argv)
{
    const int card = card_of(machine, argv[2]);
    if (card < 0) return 1;
    if (strcmp(argv[1], "xid") == 0 && argc == 4) {
        fg_post_event(state, card, NVML_EVENT_XID_CRITICAL, strtoull(argv[3], NULL, 10));
    } else if (strcmp(argv[1], "ecc") == 0) {
        if (state->cards[card].values[FG_VALUE_ecc_uncorrected] != FG_UNKNOWN) state->cards[card].values[FG_VALUE_ecc_uncorrected]++;
        if (state->cards[card].values[FG_VALUE_ecc_uncorrected_lifetime] != FG_UNKNOWN)
            state->cards[card].values[FG_VALUE_ecc_uncorrected_lifetime]++;
        fg_post_event(state, card, NVML_EVENT_DOUBLE_BIT_ECC, 0);
    } else if (strcmp(argv[1], "lose") == 0) {
        state->cards[card].lost = true;
        fg_post_event(state, card, NVML_EVENT_XID_CRITICAL, 79);
    } else if (strcmp(argv[1], "restore") == 0) {
        state->cards[card].lost = false;
    } else if (strcmp(argv[1], "unplug") == 0) {
        state->cards[card].lost = state->cards[card].unplugged = true;
    } else if (strcmp(argv[1], "plug") == 0) {
        state->cards[card].lost = state->cards[card].unplugged = false;
    } else if (strcmp(argv[1], "mig-busy") == 0 && argc == 4) {
        return set_busy(&state->cards[card].mig, argv[3], true);
    } else if (strcmp(argv[1], "set") == 0 && argc == 5) {
        return set_value(&state->cards[card], argv[3], argv[4]);
    } else if (strcmp(argv[1], "mig-idle") == 0 && argc == 4) {
        return set_busy(&state->cards[card].mig, argv[3], false);
    } else if (strcmp(argv[1], "mig-clear") == 0) {
        for (int i = 0; i < FG_MAX_MIG; i++) state->cards[card].mig.instances[i].live = state->cards[card].mig.devices[i].live = false;
    } else {
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct fg_machine *machine = fg_machine();
    if (machine == NULL) return fprintf(stderr, "fakegpu-ctl: FAKEGPU_CONFIG names no usable machine\n"), 1;
    struct fg_state *state = fg_state(machine);
    if (state == NULL) return 1;
    int result = -1;
    if (argc == 2 && strcmp(argv[1], "show") == 0) {
        show(machine, state);
        result = 0;
    } else if (argc == 2 && strcmp(argv[1], "reset-peak") == 0) {
        fg_lock(state);
        for (int i = 0; i < FG_MAX_DEVICES; i++) state->cards[i].peak_bytes = state->cards[i].used_bytes;
        fg_unlock(state);
        result = 0;
    } else if (argc >= 3) {
        result = act_on_card(machine, state, argc, argv);
    }
    if (result < 0)
        fprintf(stderr, "usage: fakegpu-ctl show | xid CARD CODE | ecc CARD | lose CARD | restore CARD | unplug CARD | plug CARD | set "
                        "CARD NAME VALUE | mig-busy CARD GI | mig-idle CARD GI | mig-clear CARD | reset-peak\n");
    return result < 0 ? 2 : result;
}
