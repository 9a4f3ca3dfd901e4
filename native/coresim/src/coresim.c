/* coresim: what share of a card tenants get under their core limits, in virtual time.
 *
 * Reads one scenario per line (scenario.h), answers one line of JSON each: the share of the card, in percent, that each tenant and each of
 * its processes had between settle_s and the end, and the longest wait of a launch. The limits are libvgpu's governor, the card is the
 * stand-in driver's clock (native/fakegpu/README.md); only the threads that launch are made up: they launch as fast as they may.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "card/clock.h"
#include "governor/thread_budget.h"
#include "scenario.h"

/* A launch keeps its thread busy for so long; a card's queue takes so many. */
static const int64_t LAUNCH_NS = 3000;
enum { QUEUE_DEPTH = 1024 };

struct process {
    const struct tenant *tenant;
    int index, tenant_index, container;
    int64_t wake_ns;
    int64_t asked_ns; /* since when the present launch asks; 0: it does not */
    int64_t longest_wait_ns;
    uint64_t launches;
    int64_t marks[QUEUE_DEPTH], last_mark;
    int64_t done_at_settle_ns, last_sample;
    bool has_context;
    struct {
        int64_t before, after, recorded_ns;
    } timings[VGPU_TIMINGS];
    struct vgpu_governor governor;
    struct vgpu_costs costs;
    int64_t budget_ns;
    _Atomic uint64_t had_ns, waiting_at_ns;
};

static struct scenario scenario;
static struct fg_clock card;
static struct fg_timing timing;
static struct process processes[MAX_PROCESSES];
static int process_count;
static uint64_t sample_salt; /* of the choice of whole samples */
static _Atomic int64_t paid_until_ns[MAX_TENANTS], claimed_until_ns[MAX_TENANTS];

static uint64_t random_number(void)
{
    scenario.seed ^= scenario.seed << 13, scenario.seed ^= scenario.seed >> 7, scenario.seed ^= scenario.seed << 17;
    return scenario.seed;
}

static struct vgpu_member member(const struct vgpu_members *members, int index)
{
    struct process *process = &processes[index];
    if (process->container != *(const int *)members->context) return (struct vgpu_member){0};
    return (struct vgpu_member){.had_ns = &process->had_ns, .waiting_at_ns = &process->waiting_at_ns};
}

static struct vgpu_shared_cores shared_of(struct process *process)
{
    return (struct vgpu_shared_cores){
        .paid_until_ns = &paid_until_ns[process->container],
        .claimed_until_ns = &claimed_until_ns[process->container],
        .members = {.count = process_count, .member = member, .context = &process->container},
        .own = {.had_ns = &process->had_ns, .waiting_at_ns = &process->waiting_at_ns},
    };
}

/* What libvgpu learns by asking its events. */
static void harvest(struct process *process, const struct vgpu_shared_cores *shared, int64_t now_ns)
{
    for (int i = 0; i < VGPU_TIMINGS; i++) {
        if (process->governor.timings[i].key == 0) continue;
        const int64_t begun = fg_clock_reached_ns(&card, process->index, process->timings[i].before);
        if (begun == 0) continue;
        vgpu_governor_started(&process->governor, i, now_ns);
        const int64_t ended = fg_clock_reached_ns(&card, process->index, process->timings[i].after);
        if (ended == 0) continue;
        const int64_t from = begun > process->timings[i].recorded_ns ? begun : process->timings[i].recorded_ns;
        vgpu_governor_ended(&process->governor, shared, i, now_ns, ended - from);
    }
}

static unsigned int percent(int64_t busy_ns, int64_t length_ns) { return (unsigned int)(busy_ns * 100 / length_ns); }

static void ask_nvml(struct process *process, int64_t now_ns)
{
    if (!scenario.utilization || !vgpu_governor_wants_sample(&process->governor, now_ns)) return;
    const int64_t shown = fg_sample_shown(&timing, now_ns, scenario.delay_ns, scenario.missing_percent);
    if (process->last_sample < 0) process->last_sample = now_ns / timing.sample_ns - 1; /* asks for what comes after its first launch */
    const struct fg_usage usage = fg_usage_since(&card, &timing, process->index, process->last_sample, shown, sample_salt);
    if (usage.newest < 0) return; /* NVML answers "not found" */
    const int64_t begin_ns = (process->last_sample + 1) * timing.sample_ns;
    const int64_t newest_ns = fg_sample_of_process_ns(&card, process->index, usage.newest, timing.whole_samples, sample_salt);
    process->last_sample = usage.newest;
    vgpu_governor_sample(&process->governor, begin_ns, (usage.newest + 1) * timing.sample_ns, percent(usage.busy_ns, usage.length_ns),
                         percent(newest_ns, timing.sample_ns));
}

static int64_t later(int64_t now_ns, int64_t wait_ns)
{
    return now_ns + wait_ns + (scenario.wake_late_ns > 0 ? (int64_t)(random_number() % (uint64_t)scenario.wake_late_ns) : 0);
}

static void launch(struct process *process, int64_t length_ns, int timed_as, int64_t now_ns)
{
    const int64_t before = process->last_mark;
    process->last_mark = fg_clock_submit(&card, process->index, length_ns);
    process->marks[process->launches++ % QUEUE_DEPTH] = process->last_mark;
    if (timed_as < 0) return;
    process->timings[timed_as].before = before;
    process->timings[timed_as].after = process->last_mark;
    process->timings[timed_as].recorded_ns = now_ns;
}

/* Waits, as a program does, for the card: for room in the queue, and after every so many launches for all of them. 0: no need. */
static int64_t waits_for_card_ns(const struct process *process)
{
    const int every = process->tenant->sync_every;
    if (process->launches == 0) return 0;
    if (every > 0 && process->launches % (uint64_t)every == 0) return fg_clock_left_ns(&card, process->index, process->last_mark);
    if (process->launches < QUEUE_DEPTH) return 0;
    return fg_clock_left_ns(&card, process->index, process->marks[process->launches % QUEUE_DEPTH]);
}

/* Makes the context, which keeps the card busy for a while. Whether there is one. */
static bool has_context(struct process *process, int64_t now_ns)
{
    if (!process->has_context) {
        process->has_context = true;
        process->last_mark = fg_clock_submit(&card, process->index, process->tenant->startup_ns);
    }
    const int64_t left_ns = process->launches == 0 ? fg_clock_left_ns(&card, process->index, process->last_mark) : 0;
    if (left_ns > 0) process->wake_ns = later(now_ns, left_ns);
    return left_ns == 0;
}

static void step(struct process *process, int64_t now_ns)
{
    const struct tenant *tenant = process->tenant;
    if (tenant->startup_ns > 0 && !has_context(process, now_ns)) return;
    const int64_t busy_ns = process->asked_ns == 0 ? waits_for_card_ns(process) : 0;
    if (now_ns >= tenant->ends_ns || busy_ns > 0) {
        process->wake_ns = now_ns >= tenant->ends_ns ? INT64_MAX : later(now_ns, busy_ns);
        return;
    }
    const int kind = (int)(process->launches % (uint64_t)tenant->kinds);
    const uint64_t key = vgpu_cost_key(process, (uint64_t)kind + 1);
    process->governor.percent =
        scenario.change_ns != 0 && now_ns >= scenario.change_ns && tenant->later_percent != 0 ? tenant->later_percent : tenant->percent;
    int timed_as = -1;
    if (process->governor.percent < 100 && !vgpu_thread_budget_fill_and_pay(&process->governor, key, &process->budget_ns)) {
        const struct vgpu_shared_cores shared = shared_of(process);
        harvest(process, &shared, now_ns);
        ask_nvml(process, now_ns);
        if (process->asked_ns == 0) process->asked_ns = now_ns;
        const struct vgpu_verdict verdict = vgpu_governor_ask(&process->governor, &shared, key, process->asked_ns, now_ns, true);
        if (verdict.wait_ns > 0) {
            process->wake_ns = later(now_ns, verdict.wait_ns);
            return;
        }
        timed_as = verdict.timing;
        if (now_ns - process->asked_ns > process->longest_wait_ns) process->longest_wait_ns = now_ns - process->asked_ns;
    }
    process->asked_ns = 0;
    launch(process, tenant->kernel_ns[kind] * 132 / scenario.sm_count, timed_as, now_ns);
    const bool syncs = tenant->sync_every > 0 && process->launches % (uint64_t)tenant->sync_every == 0;
    process->wake_ns = now_ns + LAUNCH_NS + (syncs ? tenant->pause_ns : 0);
}

static void begin(void)
{
    memset(&card, 0, sizeof card);
    memset(paid_until_ns, 0, sizeof paid_until_ns);
    memset(claimed_until_ns, 0, sizeof claimed_until_ns);
    memset(processes, 0, sizeof processes);
    timing = (struct fg_timing){.time_slice_ns = scenario.time_slice_ns,
                                .context_switch_ns = scenario.context_switch_ns,
                                .sample_ns = scenario.sample_ns,
                                .whole_samples = scenario.whole_samples};
    process_count = 0;
    sample_salt = scenario.seed * UINT64_C(0x94D049BB133111EB);
    /* Times of 0 have meanings of their own, so the clock starts later. */
    card.at_ns = INT64_C(100000000000);
    for (int t = 0; t < scenario.tenant_count; t++) {
        scenario.tenants[t].begins_ns += card.at_ns;
        if (scenario.tenants[t].ends_ns != INT64_MAX) scenario.tenants[t].ends_ns += card.at_ns;
        for (int i = 0; i < scenario.tenants[t].processes && process_count < MAX_PROCESSES; i++) {
            struct process *process = &processes[process_count];
            process->tenant = &scenario.tenants[t];
            process->tenant_index = t;
            process->container = t > 0 && scenario.tenants[t].same_container ? t - 1 : t;
            process->index = process_count++;
            process->wake_ns = later(process->tenant->begins_ns, 1000);
            process->last_sample = -1;
            vgpu_governor_start(&process->governor, &process->costs, process->tenant->percent);
        }
    }
    if (scenario.change_ns != 0) scenario.change_ns += card.at_ns;
}

static void report(double measured_ns)
{
    printf("{\"tenants\": [");
    for (int t = 0; t < scenario.tenant_count; t++) {
        double sum = 0;
        int64_t longest_ns = 0;
        printf("%s{\"processes\": [", t > 0 ? ", " : "");
        const char *before = "";
        for (int i = 0; i < process_count; i++) {
            if (processes[i].tenant_index != t) continue;
            const double share = (double)(card.queues[i].done_ns - processes[i].done_at_settle_ns) / measured_ns * 100;
            printf("%s%.2f", before, share);
            before = ", ";
            sum += share;
            if (processes[i].longest_wait_ns > longest_ns) longest_ns = processes[i].longest_wait_ns;
        }
        printf("], \"percent\": %.2f, \"longest_wait_s\": %.3f}", sum, (double)longest_ns / 1e9);
    }
    printf("]}\n");
    fflush(stdout);
}

static void simulate(void)
{
    begin();
    const int64_t start_ns = card.at_ns, settle_ns = start_ns + (int64_t)(scenario.settle_s * 1e9);
    const int64_t end_ns = start_ns + (int64_t)(scenario.seconds * 1e9);
    bool settled = false;
    while (card.at_ns < end_ns) {
        struct process *next = &processes[0];
        for (int i = 1; i < process_count; i++)
            if (processes[i].wake_ns < next->wake_ns) next = &processes[i];
        int64_t now_ns = next->wake_ns < end_ns ? next->wake_ns : end_ns;
        const bool settles = !settled && now_ns >= settle_ns;
        if (settles) now_ns = settle_ns;
        fg_clock_advance(&card, &timing, now_ns);
        for (int i = 0; settles && i < process_count; i++) processes[i].done_at_settle_ns = card.queues[i].done_ns;
        settled = settled || settles;
        if (!settles && now_ns < end_ns) step(next, now_ns);
    }
    report((double)(end_ns - settle_ns));
}

int main(void)
{
    static char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *wrong = scenario_parse(line, &scenario);
        if (wrong != NULL) return fprintf(stderr, "coresim: %s is not understood\n", wrong), 2;
        simulate();
    }
    return 0;
}
