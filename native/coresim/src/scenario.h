/* What is simulated: one line of text per scenario, of settings "key=value". A tenant begins with tenant=LIMIT and has
 * the keys after it. */
#ifndef CORESIM_SCENARIO_H
#define CORESIM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_TENANTS = 8, MAX_PROCESSES = 64, MAX_KINDS = 8 };

struct tenant {
    uint32_t percent, later_percent; /* from change_ns on */
    int processes;
    int kinds;
    int64_t kernel_ns[MAX_KINDS]; /* on a card of 132 SMs; launched in turn */
    int sync_every;               /* launches between two synchronisations; 0: never */
    int64_t pause_ns;             /* host work after each synchronisation */
    int64_t begins_ns, ends_ns;
    int64_t startup_ns; /* what making its context keeps the card busy, before its first launch */
    bool same_container; /* as the tenant before it: one bucket for both */
};

struct scenario {
    int sm_count;
    double seconds, settle_s;
    int64_t sample_ns, delay_ns, time_slice_ns, context_switch_ns, wake_late_ns, change_ns;
    unsigned int missing_percent;
    bool utilization; /* whether NVML knows processes */
    bool whole_samples; /* a sample of the card counts for one process, with others in it too */
    uint64_t seed;
    int tenant_count;
    struct tenant tenants[MAX_TENANTS];
};

/* NULL, or the setting that is wrong. Changes the text. */
const char *scenario_parse(char *text, struct scenario *scenario);

#endif
