/* The clock of one card: which process's kernels run when. Pure: time comes in as an argument, so that the driver (real time) and the
 * simulation of the core limits (virtual time) use the same model. native/fakegpu/README.md names the sources of its rules.
 *
 * A process has one queue of work, measured in nanoseconds of the whole card. Processes with work take turns of one time slice; a change
 * of the running process costs a context switch, during which nobody computes. A process that is alone runs on.
 * A place in a queue is a mark: the nanoseconds of work that end there. A mark is done when that much has run.
 */
#ifndef FAKEGPU_CLOCK_H
#define FAKEGPU_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum {
    FG_MAX_PROCESSES = 1024,
    FG_RUNS = 2048,   /* who ran when: about four seconds of turns of 2 ms */
    FG_SAMPLES = 32   /* utilisation samples that the driver keeps per process and card */
};

struct fg_timing {
    int64_t time_slice_ns, context_switch_ns;
    int64_t sample_ns; /* length of a utilisation sample */
    bool whole_samples; /* a sample counts for one of the processes that ran in it */
};

struct fg_queue {
    int64_t submitted_ns, done_ns; /* never decrease, also when the place goes to another process */
};

struct fg_run {
    int32_t process;
    int64_t from_ns, until_ns;
    int64_t done_before_ns; /* of the process's queue, at from_ns */
};

/* One utilisation sample: the `number`th stretch of sample_ns since boot. */
struct fg_sample {
    int64_t number;
    int64_t busy_ns;
};

struct fg_clock {
    int64_t at_ns; /* simulated up to here */
    int32_t running; /* whose turn it is */
    int32_t queue_count; /* queues from here on have never been used */
    int64_t turn_left_ns, switch_left_ns;
    uint64_t run_count; /* ever; the ring keeps the last FG_RUNS */
    struct fg_queue queues[FG_MAX_PROCESSES];
    struct fg_run runs[FG_RUNS];
    struct fg_sample card_samples[FG_SAMPLES];
    struct fg_sample samples[FG_MAX_PROCESSES][FG_SAMPLES];
};

/* Lets the card work until `now_ns`. */
void fg_clock_advance(struct fg_clock *clock, const struct fg_timing *timing, int64_t now_ns);

/* Queues work of a process. Returns its mark. The clock must have been advanced to now. */
int64_t fg_clock_submit(struct fg_clock *clock, int process, int64_t length_ns);

/* When a mark was reached; 0 if it is not yet. A mark reached longer ago than the ring remembers answers the oldest time it knows. */
int64_t fg_clock_reached_ns(const struct fg_clock *clock, int process, int64_t mark);

/* Work before the mark that has not run. */
int64_t fg_clock_left_ns(const struct fg_clock *clock, int process, int64_t mark);

/* Drops what a dead process had queued. */
void fg_clock_drop(struct fg_clock *clock, int process);

/* Busy nanoseconds of one sample in a ring; 0 if the ring no longer, or not yet, knows it. */
int64_t fg_sample_busy_ns(const struct fg_sample ring[FG_SAMPLES], int64_t number);

/* Busy nanoseconds of one sample as NVML shows them of a process: its own, or (`whole`) those of the whole card for one of the processes
 * that ran in it, as likely as its part, and nothing for the others. `salt` makes other choices. */
int64_t fg_sample_of_process_ns(const struct fg_clock *clock, int process, int64_t number, bool whole, uint64_t salt);

/* What NVML answers of a process: the mean of the samples after `seen` up to the newest that has something of it and is not newer than
 * `shown` (fg_sample_shown). */
struct fg_usage {
    int64_t newest; /* of the samples; -1: there is none */
    int64_t busy_ns, length_ns;
};
struct fg_usage fg_usage_since(const struct fg_clock *clock, const struct fg_timing *timing, int process, int64_t seen, int64_t shown,
                               uint64_t salt);

/* What NVML shows: the newest sample that is complete, at least `delay_ns` old, and not one of those that go missing (a fixed choice of
 * `missing_percent` of all). Returns its number; -1 if there is none among the kept ones. */
int64_t fg_sample_shown(const struct fg_timing *timing, int64_t now_ns, int64_t delay_ns, unsigned int missing_percent);

#endif
