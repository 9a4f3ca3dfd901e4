#include "governor/governor.h"

#include "timeshare/bucket.h"
#include "timeshare/shared_time.h"

/* GPU time that is paid at once: long enough that renewing it costs nothing, short beside every sample of NVML. */
static const int64_t LEASE_NS = 4000000;
/* The price of a launch of which nothing is known yet. */
static const int64_t UNKNOWN_NS = 100000;
/* A second launch of an unknown kind waits so long for the timing of the first; then its age is its price. */
static const int64_t UNKNOWN_WAIT_NS = 500000000;
/* How often NVML is asked, how long a waiter sleeps at most and at least. */
static const int64_t SAMPLE_EVERY_NS = 80000000, LONGEST_SLEEP_NS = 5000000, SHORTEST_SLEEP_NS = 50000;
/* So far may launches run ahead of a card that is busy: else what was launched and what was done in one sample have nothing to do with
 * each other, and a lowered limit would be felt late. A card that finishes nothing for a while may be waiting for this very thread. */
static const int64_t AHEAD_NS = 60000000, NO_PROGRESS_NS = 250000000, AHEAD_WAIT_NS = 1000000000;
/* After such a pause a process has left the queue of those who want to launch. */
static const int64_t PAUSE_NS = 1000000000;
/* A launch that took longer, several turns, may have shared its time with launches of other processes of the container. When a shorter one
 * ran is not known well enough: its end is noticed by the next launch. */
static const int64_t SEVERAL_TURNS_NS = 8000000;
/* A card that several processes share gives them turns of about this length: a shorter launch is mostly timed in one piece, and one that
 * took so much longer than others of its kind was not. */
static const int64_t TURN_NS = 1500000;

void vgpu_governor_start(struct vgpu_governor *governor, struct vgpu_costs *costs, uint32_t percent)
{
    governor->percent = percent;
    vgpu_calibration_start(&governor->calibration);
    atomic_store_explicit(&governor->costs, costs, memory_order_release);
}

/* How much unused share may be made up for. A thread that is woken late does so: schedulers delay by less than a tenth of a second, and a
 * tenth of a second of full speed goes unnoticed. With long launches, which are charged first and corrected when NVML has spoken, it is
 * twice the length of one, else the correction would come too late to be of use. */
static int64_t burst_ns(const struct vgpu_governor *governor)
{
    static const int64_t LEAST_NS = 100000000, MOST_NS = 4000000000;
    const int64_t wanted = 2 * governor->longest_ns;
    return wanted < LEAST_NS ? LEAST_NS : wanted > MOST_NS ? MOST_NS : wanted;
}

/* Apparent time of a launch of that length at the price that NVML taught. */
static int64_t priced(const struct vgpu_governor *governor, int64_t apparent_ns, int64_t length_ns)
{
    const struct vgpu_calibration *calibration = &governor->calibration;
    return (int64_t)((double)apparent_ns * (length_ns < TURN_NS ? vgpu_calibration_short_ratio(calibration) : calibration->ratio));
}

static void charge_container(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, int64_t now_ns, int64_t gpu_ns)
{
    vgpu_bucket_charge(shared->paid_until_ns, now_ns, gpu_ns, governor->percent, burst_ns(governor));
    vgpu_fairness_had(shared->own, gpu_ns);
}

static void charge_own(struct vgpu_governor *governor, int64_t now_ns, int64_t gpu_ns)
{
    vgpu_bucket_charge(&governor->own_paid_until_ns, now_ns, gpu_ns, governor->percent, burst_ns(governor));
}

static void charge_gpu(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, int64_t now_ns, int64_t gpu_ns)
{
    charge_container(governor, shared, now_ns, gpu_ns);
    charge_own(governor, now_ns, gpu_ns);
}

static int64_t charge(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, int64_t now_ns, int64_t apparent_ns,
                      int64_t length_ns)
{
    const int64_t gpu_ns = priced(governor, apparent_ns, length_ns);
    charge_gpu(governor, shared, now_ns, gpu_ns);
    return gpu_ns;
}

/* Charges for a launch up to what has been claimed for it, the container, and up to its age, the process; `back` also gives back. */
static void charge_timing(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, struct vgpu_timing *timing,
                          int64_t now_ns, int64_t age_ns, bool back)
{
    if (timing->claimed_ns > timing->charged_ns || back) {
        const int64_t gpu_ns = priced(governor, timing->claimed_ns - timing->charged_ns, age_ns);
        charge_container(governor, shared, now_ns, gpu_ns);
        timing->gpu_ns += gpu_ns;
        timing->charged_ns = timing->claimed_ns;
    }
    if (age_ns > timing->own_charged_ns || back) {
        charge_own(governor, now_ns, priced(governor, age_ns - timing->own_charged_ns, age_ns));
        timing->own_charged_ns = age_ns;
    }
}

static void claim_until(struct vgpu_timing *timing, const struct vgpu_shared_cores *shared, int64_t until_ns, int64_t now_ns)
{
    if (until_ns <= timing->seen_until_ns) return;
    timing->claimed_ns += vgpu_shared_time_claim(shared->claimed_until_ns, timing->seen_until_ns, until_ns, now_ns);
    timing->seen_until_ns = until_ns;
}

/* Launches that run longer than they were charged are charged as they go. */
static void charge_running(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, int64_t now_ns)
{
    governor->oldest_ns = now_ns;
    for (int i = 0; i < VGPU_TIMINGS; i++) {
        struct vgpu_timing *timing = &governor->timings[i];
        if (timing->key == 0) continue;
        if (timing->asked_ns < governor->oldest_ns) governor->oldest_ns = timing->asked_ns;
        if (timing->started_ns == 0) continue;
        claim_until(timing, shared, now_ns, now_ns);
        charge_timing(governor, shared, timing, now_ns, now_ns - timing->started_ns, false);
    }
}

/* What the lease paid for since the last renewal. Timed launches show their own time more exactly, and are left out. */
static void account_for_lease(struct vgpu_governor *governor, int64_t now_ns)
{
    const int64_t used = governor->leased_ns - atomic_load_explicit(&governor->lease_ns, memory_order_relaxed);
    if (used > 0) vgpu_calibration_took(&governor->calibration, governor->last_ask_ns, now_ns, used, priced(governor, used, 0));
    governor->leased_ns -= used;
}

static int64_t bounded_sleep(int64_t wait_ns)
{
    return wait_ns < SHORTEST_SLEEP_NS ? SHORTEST_SLEEP_NS : wait_ns > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS : wait_ns;
}

static int free_timing(const struct vgpu_governor *governor)
{
    for (int i = 0; i < VGPU_TIMINGS; i++)
        if (governor->timings[i].key == 0) return i;
    return -1;
}

/* Whether a launch of an unknown kind waits for what another of it, or any to make room, is about to show. */
static bool waits_for_timing(struct vgpu_governor *governor, uint64_t key, int64_t asked_first_ns, int64_t now_ns)
{
    const struct vgpu_cost *cost = vgpu_cost_of(governor->costs, key);
    if (vgpu_cost_ns(governor->costs, key) != 0) return false;
    const bool being_timed = atomic_load_explicit(&cost->key, memory_order_relaxed) == key && cost->being_timed > 0;
    if (!being_timed && free_timing(governor) >= 0) return false;
    if (now_ns - asked_first_ns < UNKNOWN_WAIT_NS) return true;
    vgpu_cost_guess(governor->costs, key, now_ns - asked_first_ns);
    return false;
}

static bool is_ahead(const struct vgpu_governor *governor, int64_t asked_first_ns, int64_t now_ns)
{
    return now_ns - governor->oldest_ns > AHEAD_NS + 2 * governor->longest_ns && now_ns - governor->progress_ns < NO_PROGRESS_NS &&
           now_ns - asked_first_ns < AHEAD_WAIT_NS;
}

static int64_t must_wait(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, uint64_t key, int64_t asked_first_ns,
                         int64_t now_ns)
{
    if (now_ns - asked_first_ns >= VGPU_LONGEST_WAIT_NS) return 0;
    if (waits_for_timing(governor, key, asked_first_ns, now_ns) || is_ahead(governor, asked_first_ns, now_ns)) {
        vgpu_fairness_withdraw(shared->own);
        return SHORTEST_SLEEP_NS;
    }
    const int64_t own = vgpu_bucket_wait_ns(&governor->own_paid_until_ns, now_ns);
    const int64_t all = vgpu_bucket_wait_ns(shared->paid_until_ns, now_ns);
    const bool others_first = vgpu_fairness_waits(&shared->members, shared->own, now_ns);
    const int64_t wait = own > all ? own : all;
    return wait > 0 ? bounded_sleep(wait) : others_first ? SHORTEST_SLEEP_NS : 0;
}

static bool is_short_kind(struct vgpu_governor *governor, uint64_t key)
{
    const int64_t cost_ns = vgpu_cost_ns(governor->costs, key);
    return cost_ns > 0 && cost_ns < LEASE_NS / 2;
}

static void give_lease(struct vgpu_governor *governor, int64_t ns)
{
    atomic_fetch_add_explicit(&governor->lease_ns, ns, memory_order_relaxed);
    governor->leased_ns += ns;
}

/* Charges the launch itself, and has it timed if that is wanted and possible. */
static struct vgpu_verdict admit(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, uint64_t key, int64_t now_ns,
                                 bool time)
{
    struct vgpu_cost *cost = vgpu_cost_place(governor->costs, key);
    const int64_t known_ns = atomic_load_explicit(&cost->ns, memory_order_relaxed), price_ns = known_ns > 0 ? known_ns : UNKNOWN_NS;
    const int timing = time ? free_timing(governor) : -1;
    const int64_t gpu_ns = charge(governor, shared, now_ns, price_ns, price_ns);
    if (timing >= 0) {
        governor->timings[timing] =
            (struct vgpu_timing){.key = key, .asked_ns = now_ns, .charged_ns = price_ns, .own_charged_ns = price_ns, .gpu_ns = gpu_ns};
        cost->being_timed++;
    } else {
        if (known_ns == 0) vgpu_cost_guess(governor->costs, key, UNKNOWN_NS);
        vgpu_calibration_took(&governor->calibration, now_ns, now_ns + price_ns, price_ns, gpu_ns);
    }
    return (struct vgpu_verdict){.timing = timing};
}

struct vgpu_verdict vgpu_governor_ask(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, uint64_t key,
                                      int64_t asked_first_ns, int64_t now_ns, bool can_time)
{
    if (governor->percent >= 100) return (struct vgpu_verdict){.timing = -1};
    if (governor->calibration.since_ns == 0) governor->calibration.since_ns = now_ns;
    charge_running(governor, shared, now_ns);
    account_for_lease(governor, now_ns);
    charge_gpu(governor, shared, now_ns, vgpu_calibration_settle(&governor->calibration, governor->oldest_ns, governor->longest_ns));
    if (now_ns - governor->last_ask_ns > PAUSE_NS) vgpu_fairness_rejoin(&shared->members, shared->own, now_ns);
    governor->last_ask_ns = now_ns;
    const bool is_short = is_short_kind(governor, key);
    const bool second_part = is_short && governor->prepaid_ns > 0;
    if (second_part) {
        give_lease(governor, governor->prepaid_ns);
        governor->prepaid_ns = 0;
    } else {
        const int64_t wait_ns = must_wait(governor, shared, key, asked_first_ns, now_ns);
        if (wait_ns > 0) return (struct vgpu_verdict){.wait_ns = wait_ns, .timing = -1};
    }
    vgpu_fairness_withdraw(shared->own);
    if (is_short && !second_part) {
        charge(governor, shared, now_ns, LEASE_NS, 0);
        give_lease(governor, LEASE_NS / 2);
        governor->prepaid_ns += LEASE_NS / 2;
    }
    return admit(governor, shared, key, now_ns, can_time && (second_part || !is_short));
}

void vgpu_governor_started(struct vgpu_governor *governor, int timing, int64_t now_ns)
{
    struct vgpu_timing *started = &governor->timings[timing];
    if (started->started_ns == 0) started->started_ns = started->seen_until_ns = now_ns;
}

static void forget(struct vgpu_governor *governor, int timing)
{
    struct vgpu_cost *cost = vgpu_cost_of(governor->costs, governor->timings[timing].key);
    if (atomic_load_explicit(&cost->key, memory_order_relaxed) == governor->timings[timing].key && cost->being_timed > 0)
        cost->being_timed--;
    governor->timings[timing].key = 0;
}

/* What is to be charged for a launch that has ended: all that it took, or, if it was long, what was not claimed by others. */
static void claim_to_the_end(struct vgpu_timing *ended, const struct vgpu_shared_cores *shared, int64_t now_ns, int64_t took_ns)
{
    if (took_ns < SEVERAL_TURNS_NS) {
        ended->claimed_ns = took_ns;
        return;
    }
    /* Nobody may have looked while it ran: then it is seen to begin and to end at once. */
    const bool seen = ended->started_ns != 0 && ended->started_ns < now_ns;
    if (!seen) ended->seen_until_ns = now_ns - took_ns;
    const int64_t end_ns = seen && ended->started_ns + took_ns < now_ns ? ended->started_ns + took_ns : now_ns;
    claim_until(ended, shared, end_ns, now_ns);
    if (ended->claimed_ns > took_ns) ended->claimed_ns = took_ns;
}

void vgpu_governor_ended(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, int timing, int64_t now_ns,
                         int64_t took_ns)
{
    struct vgpu_timing ended = governor->timings[timing];
    const int64_t known_ns = vgpu_cost_ns(governor->costs, ended.key);
    const bool others_turn = governor->calibration.noisy && known_ns > 0 && known_ns < TURN_NS && took_ns - known_ns > TURN_NS;
    forget(governor, timing);
    claim_to_the_end(&ended, shared, now_ns, others_turn ? known_ns : took_ns);
    /* Where less than an equal part was claimed, others claimed the rest. */
    const int64_t equal_ns = took_ns / (shared->members.count > 0 ? shared->members.count : 1);
    vgpu_cost_learn(governor->costs, ended.key, ended.claimed_ns > equal_ns ? ended.claimed_ns : equal_ns);
    governor->progress_ns = now_ns;
    const int64_t fading_ns = governor->longest_ns - governor->longest_ns / 16;
    governor->longest_ns = took_ns > fading_ns ? took_ns : fading_ns;
    charge_timing(governor, shared, &ended, now_ns, others_turn ? known_ns : took_ns, true);
    vgpu_calibration_took(&governor->calibration, now_ns - took_ns, now_ns, ended.claimed_ns, ended.gpu_ns);
}

void vgpu_governor_untimed(struct vgpu_governor *governor, int timing)
{
    const struct vgpu_timing lost = governor->timings[timing];
    forget(governor, timing);
    vgpu_cost_guess(governor->costs, lost.key, UNKNOWN_NS);
}

bool vgpu_governor_wants_sample(struct vgpu_governor *governor, int64_t now_ns)
{
    if (governor->percent >= 100 || now_ns < governor->next_sample_ns) return false;
    governor->next_sample_ns = now_ns + SAMPLE_EVERY_NS;
    return true;
}

void vgpu_governor_sample(struct vgpu_governor *governor, int64_t begin_ns, int64_t end_ns, unsigned int percent,
                          unsigned int newest_percent)
{
    vgpu_calibration_sample(&governor->calibration, begin_ns, end_ns, percent, newest_percent);
}
