#include "card/clock.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t waiting_ns(const struct fg_clock *clock, int process)
{
    return clock->queues[process].submitted_ns - clock->queues[process].done_ns;
}

/* The next process with work after `after`, round robin; `after` itself comes last. -1: nobody. */
static int next_with_work(const struct fg_clock *clock, int after)
{
    for (int i = 1; i <= clock->queue_count; i++) {
        const int process = (after + i) % clock->queue_count;
        if (waiting_ns(clock, process) > 0) return process;
    }
    return -1;
}

static void add_busy(struct fg_sample ring[FG_SAMPLES], int64_t number, int64_t busy_ns)
{
    struct fg_sample *sample = &ring[number % FG_SAMPLES];
    if (sample->number != number) *sample = (struct fg_sample){.number = number};
    sample->busy_ns += busy_ns;
}

static void note_busy(struct fg_clock *clock, const struct fg_timing *timing, int process, int64_t from_ns, int64_t until_ns)
{
    while (from_ns < until_ns) {
        const int64_t number = from_ns / timing->sample_ns, end = least((number + 1) * timing->sample_ns, until_ns);
        add_busy(clock->card_samples, number, end - from_ns);
        add_busy(clock->samples[process], number, end - from_ns);
        from_ns = end;
    }
}

/* The running process computes for `length_ns`. A run that goes on is one entry, however many turns it lasts. */
static void compute(struct fg_clock *clock, const struct fg_timing *timing, int64_t length_ns)
{
    struct fg_queue *queue = &clock->queues[clock->running];
    struct fg_run *last = &clock->runs[(clock->run_count + FG_RUNS - 1) % FG_RUNS];
    const int64_t until_ns = clock->at_ns + length_ns;
    if (clock->run_count == 0 || last->process != clock->running || last->until_ns != clock->at_ns) {
        last = &clock->runs[clock->run_count++ % FG_RUNS];
        *last = (struct fg_run){.process = clock->running, .from_ns = clock->at_ns, .done_before_ns = queue->done_ns};
    }
    last->until_ns = until_ns;
    note_busy(clock, timing, clock->running, clock->at_ns, until_ns);
    queue->done_ns += length_ns;
    clock->turn_left_ns -= length_ns;
    clock->at_ns = until_ns;
}

void fg_clock_advance(struct fg_clock *clock, const struct fg_timing *timing, int64_t now_ns)
{
    while (clock->at_ns < now_ns) {
        if (clock->switch_left_ns == 0 && (clock->turn_left_ns <= 0 || waiting_ns(clock, clock->running) == 0)) {
            const int next = clock->queue_count > 0 ? next_with_work(clock, clock->running) : -1;
            if (next < 0) {
                clock->at_ns = now_ns; /* idle; who ran last keeps its state loaded */
                return;
            }
            if (next != clock->running) clock->switch_left_ns = timing->context_switch_ns;
            clock->running = next;
            clock->turn_left_ns = timing->time_slice_ns;
        }
        if (clock->switch_left_ns > 0) {
            const int64_t step = least(clock->switch_left_ns, now_ns - clock->at_ns);
            clock->switch_left_ns -= step;
            clock->at_ns += step;
            continue;
        }
        compute(clock, timing, least(least(now_ns - clock->at_ns, clock->turn_left_ns), waiting_ns(clock, clock->running)));
    }
}

int64_t fg_clock_submit(struct fg_clock *clock, int process, int64_t length_ns)
{
    if (process >= clock->queue_count) clock->queue_count = process + 1;
    return clock->queues[process].submitted_ns += length_ns;
}

int64_t fg_clock_reached_ns(const struct fg_clock *clock, int process, int64_t mark)
{
    if (clock->queues[process].done_ns < mark) return 0;
    const uint64_t kept = clock->run_count < FG_RUNS ? clock->run_count : FG_RUNS;
    int64_t oldest_ns = clock->at_ns;
    for (uint64_t back = 1; back <= kept; back++) {
        const struct fg_run *run = &clock->runs[(clock->run_count - back) % FG_RUNS];
        oldest_ns = run->from_ns;
        if (run->process == process && run->done_before_ns < mark) return run->from_ns + (mark - run->done_before_ns);
    }
    return oldest_ns;
}

int64_t fg_clock_left_ns(const struct fg_clock *clock, int process, int64_t mark)
{
    const int64_t left = mark - clock->queues[process].done_ns;
    return left > 0 ? left : 0;
}

void fg_clock_drop(struct fg_clock *clock, int process)
{
    clock->queues[process].submitted_ns = clock->queues[process].done_ns;
    for (int i = 0; i < FG_SAMPLES; i++) clock->samples[process][i] = (struct fg_sample){0};
}

int64_t fg_sample_busy_ns(const struct fg_sample ring[FG_SAMPLES], int64_t number)
{
    const struct fg_sample *sample = &ring[number % FG_SAMPLES];
    return sample->number == number ? sample->busy_ns : 0;
}

/* A choice that looks random and is the same for everybody who asks (splitmix64's last step). */
static uint64_t chosen(int64_t number, uint64_t salt)
{
    const uint64_t mixed = (uint64_t)number * UINT64_C(0x9E3779B97F4A7C15) ^ salt;
    return ((mixed ^ (mixed >> 30)) * UINT64_C(0xBF58476D1CE4E5B9)) >> 33;
}

static bool goes_missing(int64_t number, unsigned int percent) { return chosen(number, 0) % 100 < percent; }

int64_t fg_sample_of_process_ns(const struct fg_clock *clock, int process, int64_t number, bool whole, uint64_t salt)
{
    const int64_t own_ns = fg_sample_busy_ns(clock->samples[process], number);
    if (!whole || own_ns == 0) return own_ns;
    const int64_t card_ns = fg_sample_busy_ns(clock->card_samples, number);
    int64_t before_ns = 0;
    for (int i = 0; i < process; i++) before_ns += fg_sample_busy_ns(clock->samples[i], number);
    const int64_t at_ns = (int64_t)(chosen(number + 1, salt) % 100000 * (uint64_t)card_ns / 100000);
    return at_ns >= before_ns && at_ns < before_ns + own_ns ? card_ns : 0;
}

struct fg_usage fg_usage_since(const struct fg_clock *clock, const struct fg_timing *timing, int process, int64_t seen, int64_t shown,
                               uint64_t salt)
{
    const int64_t kept = shown - FG_SAMPLES + 2, oldest = seen + 1 > kept ? seen + 1 : kept;
    struct fg_usage usage = {.newest = -1};
    int64_t busy_ns = 0;
    for (int64_t number = oldest > 0 ? oldest : 0; number <= shown; number++) {
        const int64_t own_ns = fg_sample_of_process_ns(clock, process, number, timing->whole_samples, salt);
        busy_ns += own_ns;
        if (own_ns > 0) usage = (struct fg_usage){number, busy_ns, (number - oldest + 1) * timing->sample_ns};
    }
    return usage;
}

int64_t fg_sample_shown(const struct fg_timing *timing, int64_t now_ns, int64_t delay_ns, unsigned int missing_percent)
{
    int64_t number = (now_ns - delay_ns) / timing->sample_ns - 1;
    for (int back = 0; back < FG_SAMPLES - 1 && number >= 0; back++, number--)
        if (!goes_missing(number, missing_percent)) return number;
    return -1;
}
