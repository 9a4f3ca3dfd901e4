/* Decides when a process may launch on one device, so that its container keeps to its share of the card. Pure: time,
 * timings and NVML's samples come in as arguments; the simulation in native/coresim runs the very same code in virtual
 * time.
 *
 * Most launches are paid from a lease of GPU time, which threads draw on in small amounts (thread_budget.h), so that
 * most launches need no locked instruction. When the lease is used up, vgpu_governor_ask is called: it charges the
 * container's bucket for the next lease, or answers how long to wait. A lease is given in two parts. The launch that
 * asks for the second, or is long, or of an unknown kind, is timed, and teaches what its kind costs (costs.h): the
 * first launch after a pause would not do, as it waits for the turn of this process on the card. What a timed launch
 * took beyond its price is charged afterwards, while it still runs if it is long. NVML corrects prices (calibration.h).
 *
 * One thread at a time; the caller holds a lock. Paying from the lease needs none: thread_budget.h.
 */
#ifndef VGPU_GOVERNOR_H
#define VGPU_GOVERNOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "governor/calibration.h"
#include "governor/costs.h"
#include "timeshare/fairness.h"

enum { VGPU_TIMINGS = 16 };

/* No launch is held back longer, whatever is owed: work that others wait for (a collective of several cards) must go on. */
#define VGPU_LONGEST_WAIT_NS INT64_C(15000000000)

struct vgpu_timing {
    uint64_t key; /* 0: free */
    int64_t asked_ns, started_ns; /* started_ns 0: not known to have begun */
    int64_t seen_until_ns;        /* until when its running time has been claimed (shared_time.h) */
    int64_t claimed_ns;           /* of that time, what no other process of the container had claimed */
    int64_t charged_ns, gpu_ns;   /* apparent time that the container has been charged for it, and at what price */
    int64_t own_charged_ns;       /* apparent time that the process has been charged for it */
};

struct vgpu_governor {
    uint32_t percent; /* 1..100; 100: no limit */
    _Atomic int64_t lease_ns; /* apparent GPU time paid in advance */
    int64_t leased_ns;        /* of that, not yet entered as used */
    int64_t prepaid_ns;       /* the rest of a lease, given when its first part is used up */
    int64_t last_ask_ns;
    _Atomic int64_t own_paid_until_ns; /* the same limit for this process alone: the shared cells can be written by anybody */
    int64_t oldest_ns;   /* since when the oldest timed launch that has not ended is under way */
    int64_t progress_ns; /* when a timed launch ended last */
    int64_t longest_ns; /* apparent time of the longest recent launch */
    int64_t next_sample_ns;
    _Atomic(struct vgpu_costs *) costs; /* of the process. NULL: not started, and no lease to pay from */
    struct vgpu_timing timings[VGPU_TIMINGS];
    struct vgpu_calibration calibration;
};

/* What the processes of the container share, for one device. */
struct vgpu_shared_cores {
    _Atomic int64_t *paid_until_ns, *claimed_until_ns;
    struct vgpu_members members;
    struct vgpu_member own;
};

struct vgpu_verdict {
    int64_t wait_ns; /* 0: launch now; else ask again after that time at most */
    int timing;      /* >= 0: time this launch, and report it by vgpu_governor_started, _ended or _untimed */
};

/* All zeroes before, it may be paid from by other threads the moment it is started. */
void vgpu_governor_start(struct vgpu_governor *governor, struct vgpu_costs *costs, uint32_t percent);

/* `asked_first_ns`: when this launch asked for the first time. `can_time`: whether timings of it are possible at all. */
struct vgpu_verdict vgpu_governor_ask(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, uint64_t key,
                                      int64_t asked_first_ns, int64_t now_ns, bool can_time);

/* A timed launch has begun on the card, has ended after `took_ns`, or could not be timed. */
void vgpu_governor_started(struct vgpu_governor *governor, int timing, int64_t now_ns);
void vgpu_governor_ended(struct vgpu_governor *governor, const struct vgpu_shared_cores *shared, int timing, int64_t now_ns,
                         int64_t took_ns);
void vgpu_governor_untimed(struct vgpu_governor *governor, int timing);

/* Whether it is time to ask NVML; true for one caller per interval. */
bool vgpu_governor_wants_sample(struct vgpu_governor *governor, int64_t now_ns);

/* What NVML reported (calibration.h). */
void vgpu_governor_sample(struct vgpu_governor *governor, int64_t begin_ns, int64_t end_ns, unsigned int percent,
                          unsigned int newest_percent);

#endif
