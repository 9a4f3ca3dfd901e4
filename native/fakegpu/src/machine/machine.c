#include "machine/machine.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "machine/json.h"
#include "card/mig.h"

static struct fg_machine the_machine;
static bool usable;

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static const char *read_links(const struct json *entry, struct fg_card *card)
{
    const struct json *links = json_member(entry, "nvlinks");
    for (const struct json *link = links != NULL ? links->child : NULL; link != NULL; link = link->next) {
        if (card->link_count == FG_MAX_LINKS) return "more than 18 nvlinks";
        card->link_peer[card->link_count++] = (int)link->number;
    }
    return NULL;
}

/* Where the MIG device's GPU instance lies: beside an earlier one of the same id, else at the start that it names, else at the first free
 * placement. */
static const char *place_mig(const struct json *entry, struct fg_card *card, struct fg_mig *mig)
{
    const struct fg_mig_profile *profile = fg_mig_profile_of_slices(card, mig->gpu_slices);
    bool taken[FG_MIG_MEMORY_SLICES] = {false};
    if (profile == NULL) return "a MIG instance wants as many gpu_slices as one of its card's profiles has";
    for (const struct fg_mig *before = card->migs; before < mig; before++) {
        if (before->gpu_instance == mig->gpu_instance) return mig->start = before->start, NULL;
        for (unsigned int i = 0; i < fg_mig_profile_of_slices(card, before->gpu_slices)->size; i++) taken[before->start + i] = true;
    }
    const int wanted = (int)json_number(entry, "start", -1);
    for (int i = 0; i < profile->count; i++) {
        bool is_free = wanted < 0 || profile->starts[i] == (unsigned int)wanted;
        for (unsigned int j = 0; j < profile->size; j++) is_free = is_free && !taken[profile->starts[i] + j];
        if (is_free) return mig->start = profile->starts[i], NULL;
    }
    return "a MIG instance has no room on its card";
}

static const char *read_migs(const struct json *entry, struct fg_card *card)
{
    const struct json *migs = json_member(entry, "mig");
    card->mig_mode = migs != NULL;
    card->mig_slices = (int)json_number(entry, "mig_slices", 7);
    if (card->mig_slices != 7 && card->mig_slices != 4) return "mig_slices wants to be 7 or 4";
    for (const struct json *mig = migs != NULL ? migs->child : NULL; mig != NULL; mig = mig->next) {
        if (card->mig_count == FG_MAX_MIG) return "more than 7 MIG instances";
        struct fg_mig *to = &card->migs[card->mig_count++];
        copy(to->uuid, sizeof to->uuid, json_text(mig, "uuid", ""));
        to->gpu_slices = (int)json_number(mig, "gpu_slices", 1);
        to->compute_slices = (int)json_number(mig, "compute_slices", to->gpu_slices);
        to->gpu_instance = (unsigned int)json_number(mig, "gpu_instance", card->mig_count);
        to->compute_instance = (unsigned int)json_number(mig, "compute_instance", 0);
        to->memory_bytes = (uint64_t)json_number(mig, "memory_mib", 0) << 20;
        if (strncmp(to->uuid, "MIG-", 4) != 0 || to->memory_bytes == 0)
            return "a MIG instance wants a uuid that begins with MIG-, and memory_mib";
        const char *wrong = place_mig(mig, card, to);
        if (wrong != NULL) return wrong;
    }
    return NULL;
}

static const char *read_values(const struct json *entry, struct fg_card *card)
{
    const struct json *values = json_member(entry, "values");
    for (int value = 0; value < FG_VALUES; value++) card->values[value] = fg_value_at_first((enum fg_value)value);
    for (const struct json *each = values != NULL ? values->child : NULL; each != NULL; each = each->next) {
        const enum fg_value value = fg_value_named(each->name);
        if (value == FG_VALUES) return "values names none of those of native/fakegpu/README.md";
        if (each->type != JSON_NULL && (each->type != JSON_NUMBER || each->number < 0 || each->number >= 0x1p62))
            return "values wants numbers that are not negative, or null";
        card->values[value] = each->type == JSON_NULL ? FG_UNKNOWN : (int64_t)each->number;
    }
    return NULL;
}

/* NULL, or what is wrong with the entry. */
static const char *read_card(const struct json *entry, int index, struct fg_card *card)
{
    char bus[32];
    snprintf(bus, sizeof bus, "00000000:%02X:00.0", 7 + index);
    copy(card->uuid, sizeof card->uuid, json_text(entry, "uuid", ""));
    copy(card->name, sizeof card->name, json_text(entry, "name", "NVIDIA A100-SXM4-80GB"));
    copy(card->pci_bus_id, sizeof card->pci_bus_id, json_text(entry, "pci_bus_id", bus));
    card->memory_bytes = (uint64_t)json_number(entry, "memory_mib", 81920) << 20;
    card->sm_count = (int)json_number(entry, "sm_count", 108);
    card->max_threads_per_sm = (int)json_number(entry, "max_threads_per_sm", 2048);
    card->numa = (int)json_number(entry, "numa", 0);
    card->major = (int)json_number(entry, "major", 8);
    card->minor = (int)json_number(entry, "minor", 0);
    if (strncmp(card->uuid, "GPU-", 4) != 0) return "uuid wants to begin with GPU-";
    if (sscanf(card->pci_bus_id, "%x:%x:%x", &card->pci_domain, &card->pci_bus, &card->pci_device) != 3)
        return "pci_bus_id wants the form 00000000:07:00.0";
    if (card->memory_bytes == 0 || card->sm_count < 1 || card->max_threads_per_sm < 1)
        return "memory_mib, sm_count and max_threads_per_sm want to be positive";
    const char *wrong = read_migs(entry, card);
    if (wrong == NULL) wrong = read_values(entry, card);
    return wrong != NULL ? wrong : read_links(entry, card);
}

static const char *read_faults(const struct json *root, struct fg_machine *machine)
{
    const struct json *faults = json_member(root, "faults");
    for (const struct json *entry = faults != NULL ? faults->child : NULL; entry != NULL; entry = entry->next) {
        if (machine->fault_count == FG_MAX_FAULTS) return "more than 16 faults";
        struct fg_fault *fault = &machine->faults[machine->fault_count++];
        fault->call = fg_call_named(json_text(entry, "call", ""));
        fault->result = (int)json_number(entry, "result", 999);
        fault->after = (int)json_number(entry, "after", 0);
        fault->times = (int)json_number(entry, "times", 1);
        if (fault->call == FG_CALLS) return "a fault's call is none of those of native/fakegpu/README.md";
        if (fault->result <= 0 || fault->after < 0 || fault->times < 0)
            return "a fault's result wants to be positive, after and times at least 0";
    }
    return NULL;
}

static const char *read_gates(const struct json *root, struct fg_machine *machine)
{
    const struct json *gates = json_member(root, "gates");
    for (const struct json *entry = gates != NULL ? gates->child : NULL; entry != NULL; entry = entry->next) {
        if (machine->gate_count == FG_MAX_GATES) return "more than 8 gates";
        struct fg_gate *gate = &machine->gates[machine->gate_count++];
        gate->call = fg_call_named(json_text(entry, "call", ""));
        gate->card = (int)json_number(entry, "card", 0);
        copy(gate->until, sizeof gate->until, json_text(entry, "until", ""));
        if (gate->call == FG_CALLS || gate->until[0] == '\0') return "a gate wants a call of native/fakegpu/README.md, and until";
    }
    return NULL;
}

/* A list of all cards, by their place in "devices". */
static const char *read_cuda_order(const struct json *root, struct fg_machine *machine)
{
    const struct json *order = json_member(root, "cuda_order");
    bool named[FG_MAX_DEVICES] = {false};
    for (const struct json *entry = order != NULL ? order->child : NULL; entry != NULL; entry = entry->next) {
        const int card = (int)entry->number;
        if (card < 0 || card >= machine->card_count || named[card]) return "cuda_order wants to name each device once";
        named[card] = true;
        machine->cuda_order[machine->order_count++] = card;
    }
    return machine->order_count == 0 || machine->order_count == machine->card_count ? NULL : "cuda_order wants to name each device once";
}

static const char *read_machine(const struct json *root, struct fg_machine *machine)
{
    copy(machine->state_path, sizeof machine->state_path, json_text(root, "state", ""));
    copy(machine->driver_version, sizeof machine->driver_version, json_text(root, "driver_version", "570.124.06"));
    machine->cuda_version = (int)json_number(root, "cuda_version", 12080);
    machine->context_bytes = (uint64_t)json_number(root, "context_mib", 0) << 20;
    machine->module_bytes = (uint64_t)json_number(root, "module_kib", 0) << 10;
    machine->lazy_code_bytes = (uint64_t)json_number(root, "lazy_code_kib", 0) << 10;
    machine->granularity_bytes = (uint64_t)json_number(root, "granularity_bytes", 512);
    machine->wave_ns = (int64_t)json_number(root, "wave_ns", 50000);
    machine->pid_offset = (int)json_number(root, "pid_offset", 0);
    machine->timing.time_slice_ns = (int64_t)(json_number(root, "time_slice_us", 2000) * 1e3);
    machine->timing.context_switch_ns = (int64_t)(json_number(root, "context_switch_us", 50) * 1e3);
    machine->timing.sample_ns = (int64_t)(json_number(root, "nvml_sample_ms", 167) * 1e6);
    machine->sample_delay_ns = (int64_t)(json_number(root, "nvml_sample_delay_ms", 0) * 1e6);
    machine->sample_missing_percent = (unsigned int)json_number(root, "nvml_missing_percent", 0);
    machine->timing.whole_samples = json_number(root, "nvml_whole_samples", 0) != 0;
    machine->process_utilization = json_number(root, "nvml_process_utilization", 1) != 0;
    machine->instant_launches = json_number(root, "instant_launches", 0) != 0;
    machine->instant_allocations = json_number(root, "instant_allocations", 0) != 0;
    machine->future_location = (int)json_number(root, "future_location", 0);
    machine->queue_depth = (int)json_number(root, "queue_depth", 1024);
    if (machine->state_path[0] == '\0') return "\"state\" is missing";
    if (machine->timing.time_slice_ns < 1000 || machine->timing.context_switch_ns < 0 || machine->timing.sample_ns < 1000000)
        return "time_slice_us and nvml_sample_ms want to be at least 1, context_switch_us at least 0";
    if (machine->sample_delay_ns < 0 || machine->sample_missing_percent > 99)
        return "nvml_sample_delay_ms wants to be at least 0, nvml_missing_percent 0 to 99";
    if (machine->queue_depth < 1 || machine->queue_depth > FG_MAX_QUEUE_DEPTH) return "queue_depth wants to be 1 to 4096";
    if (machine->granularity_bytes == 0) return "granularity_bytes wants to be positive";
    const struct json *devices = json_member(root, "devices");
    if (devices == NULL || devices->type != JSON_ARRAY) return "\"devices\" is missing";
    for (const struct json *entry = devices->child; entry != NULL; entry = entry->next) {
        if (machine->card_count == FG_MAX_DEVICES) return "more than 64 devices";
        const char *bad = read_card(entry, machine->card_count, &machine->cards[machine->card_count]);
        if (bad != NULL) return bad;
        machine->card_count++;
    }
    const char *wrong = read_faults(root, machine);
    if (wrong == NULL) wrong = read_gates(root, machine);
    return wrong != NULL ? wrong : read_cuda_order(root, machine);
}

static char *read_whole(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return NULL;
    enum { LIMIT = 1 << 20 };
    char *text = calloc(1, LIMIT + 1);
    if (text != NULL && fread(text, 1, LIMIT, file) == 0) text[0] = '\0';
    fclose(file);
    return text;
}

int fg_card_named(const struct fg_machine *machine, const int *among, int count, const char *name)
{
    char *end;
    const long number = strtol(name, &end, 10);
    if (*name != '\0' && *end == '\0') return number >= 0 && number < count ? among[number] : -1;
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (strncasecmp(machine->cards[among[i]].uuid, name, strlen(name)) != 0 || strlen(name) <= 4) continue;
        if (found >= 0) return -1; /* the beginning of two uuids names neither */
        found = among[i];
    }
    return found;
}

static void read_visible(struct fg_machine *machine)
{
    const char *wanted = getenv("FAKEGPU_VISIBLE_DEVICES");
    int all[FG_MAX_DEVICES];
    bool shown[FG_MAX_DEVICES] = {false};
    for (int i = 0; i < machine->card_count; i++) all[i] = i;
    const bool everything = wanted == NULL || strcmp(wanted, "all") == 0;
    if (!everything && *wanted != '\0' && strcmp(wanted, "none") != 0 && strcmp(wanted, "void") != 0) {
        char list[4096], *rest;
        copy(list, sizeof list, wanted);
        for (char *name = strtok_r(list, ", ", &rest); name != NULL; name = strtok_r(NULL, ", ", &rest)) {
            const int card = fg_card_named(machine, all, machine->card_count, name);
            if (card >= 0) shown[card] = true;
        }
    }
    for (int i = 0; i < machine->card_count; i++)
        if (everything || shown[i]) machine->visible[machine->visible_count++] = i;
}

static void load(void)
{
    const char *path = getenv("FAKEGPU_CONFIG");
    if (path == NULL || *path == '\0') return;
    char *text = read_whole(path);
    if (text == NULL) {
        fprintf(stderr, "fakegpu: %s: %s\n", path, strerror(errno));
        return;
    }
    const char *message;
    int line;
    struct json *root = json_parse(text, &message, &line);
    const char *wrong = root != NULL ? read_machine(root, &the_machine) : message;
    if (root == NULL)
        fprintf(stderr, "fakegpu: %s: line %d: %s\n", path, line, message);
    else if (wrong != NULL)
        fprintf(stderr, "fakegpu: %s: %s (after %d good devices)\n", path, wrong, the_machine.card_count);
    usable = wrong == NULL;
    json_free(root);
    free(text);
    if (usable) read_visible(&the_machine);
}

const struct fg_machine *fg_machine(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return usable ? &the_machine : NULL;
}

void fg_uuid_bytes(const char *uuid, unsigned char bytes[16])
{
    int digits = 0;
    memset(bytes, 0, 16);
    for (const char *at = uuid + 4; *at != '\0' && digits < 32; at++) {
        if (!isxdigit((unsigned char)*at)) continue;
        const int value = isdigit((unsigned char)*at) ? *at - '0' : tolower((unsigned char)*at) - 'a' + 10;
        bytes[digits / 2] |= (unsigned char)(digits % 2 == 0 ? value << 4 : value);
        digits++;
    }
}
