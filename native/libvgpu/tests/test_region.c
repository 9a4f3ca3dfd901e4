/* The region without a driver: accounting, slots, sweeping, repair. */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "region/process.h"
#include "config/quota.h"
#include "region/region.h"
#include "region/region_slots.h"
#include "region/region_account.h"

static char path[] = "/tmp/vgpu-region-XXXXXX";
static struct vgpu_region_values values = {.device_count = 1, .priority = 1};

static void accounting(void)
{
    struct vgpu_region_file file;
    CHECK(vgpu_region_open(&file, path, &values) == 0 && file.file >= 0);
    struct vgpu_region_slot *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
    CHECK(slot == &file.region->slots[0] && vgpu_region_process_count(file.region) == 1);
    CHECK(vgpu_region_reserve(file.region, slot, 3, 60, 100) == 0);
    CHECK(vgpu_region_reserve(file.region, slot, 3, 41, 100) != 0);
    CHECK(vgpu_region_reserve(file.region, slot, 3, 40, 100) == 0);
    CHECK(vgpu_region_used(file.region, 3) == 100 && vgpu_region_used(file.region, 2) == 0);
    vgpu_region_release(file.region, slot, 3, 1000); /* never below zero */
    CHECK(vgpu_region_used(file.region, 3) == 0);
    CHECK(vgpu_region_reserve(file.region, slot, 3, 100, 100) == 0);
    vgpu_region_leave(&file, slot);
    CHECK(vgpu_region_process_count(file.region) == 0 && *vgpu_region_reserved(file.region, 3) == 0);
    vgpu_region_close(&file);
}

/* A child that holds 70 bytes in its own slot and then sleeps; returns its pid. */
static pid_t child_with_seventy(void)
{
    int ready[2];
    CHECK(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
        struct vgpu_region_file file;
        CHECK(vgpu_region_open(&file, path, &values) == 0);
        struct vgpu_region_slot *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
        CHECK(slot != NULL && vgpu_region_reserve(file.region, slot, 0, 70, 100) == 0);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void the_dead_are_swept(void)
{
    struct vgpu_region_file file;
    const pid_t first = child_with_seventy();
    CHECK(vgpu_region_open(&file, path, &values) == 0);
    struct vgpu_region_slot *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
    CHECK(slot == &file.region->slots[1] && vgpu_region_used(file.region, 0) == 70);
    CHECK(vgpu_region_reserve(file.region, slot, 0, 31, 100) != 0);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(file.region, 0) == 0 && *vgpu_region_reserved(file.region, 0) == 0);
    CHECK(slot->pid == getpid()); /* a living slot does not move */
    const pid_t second = child_with_seventy();
    CHECK(file.region->slots[0].pid == second); /* the hole is used again */
    CHECK(vgpu_region_reserve(file.region, slot, 0, 30, 100) == 0);
    /* A recycled pid: the same number with another start time is somebody else. */
    atomic_store(vgpu_slot_start_time(&file.region->slots[0]), 1);
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(file.region, 0) == 30);
    kill(second, SIGKILL);
    waitpid(second, NULL, 0);
    vgpu_region_leave(&file, slot);
    vgpu_region_close(&file);
}

static void totals_are_repaired_only_when_quiet(void)
{
    struct vgpu_region_file file;
    CHECK(vgpu_region_open(&file, path, &values) == 0);
    struct vgpu_region_slot *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
    CHECK(vgpu_region_reserve(file.region, slot, 0, 10, 100) == 0);
    atomic_store(vgpu_region_reserved(file.region, 0), 90); /* somebody died between the two numbers */
    atomic_fetch_add(vgpu_slot_begun(slot), 1);             /* and somebody lives who is just reserving */
    vgpu_region_repair_totals(file.region, 1);
    CHECK(*vgpu_region_reserved(file.region, 0) == 90);
    atomic_fetch_add(vgpu_slot_done(slot), 1);
    vgpu_region_repair_totals(file.region, 1);
    CHECK(*vgpu_region_reserved(file.region, 0) == 10);
    vgpu_region_leave(&file, slot);
    vgpu_region_close(&file);
}

/* A process that has shared 60 of its 70 bytes ends, while we have some of them open. */
static void what_others_have_open_stays(void)
{
    struct vgpu_region_file file;
    const pid_t maker = child_with_seventy();
    CHECK(vgpu_region_open(&file, path, &values) == 0);
    struct vgpu_region_slot *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
    struct vgpu_region *region = file.region;
    CHECK(region->slots[0].pid == maker && slot == &region->slots[1]);
    vgpu_region_set_shared(&region->slots[0], 0, 60, 0);
    vgpu_region_set_shared(slot, 0, 0, 50);
    kill(maker, SIGKILL);
    waitpid(maker, NULL, 0);
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(region, 0) == 50 && *vgpu_region_reserved(region, 0) == 50);
    CHECK(vgpu_region_reserve(region, slot, 0, 51, 100) != 0 && vgpu_region_reserve(region, slot, 0, 50, 100) == 0);
    vgpu_region_set_shared(slot, 0, 0, 20);
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(region, 0) == 70 && *vgpu_region_reserved(region, 0) == 70);
    vgpu_region_set_shared(slot, 0, 0, 50); /* other memory: what was closed does not come back */
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(region, 0) == 70);
    atomic_store(vgpu_region_orphaned(region, 0), UINT64_MAX); /* scribbled */
    CHECK(vgpu_region_used(region, 0) >= VGPU_UNKNOWN_SIZE);
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(region, 0) == 100 && *vgpu_region_reserved(region, 0) == 100);
    vgpu_region_leave(&file, slot); /* nobody else has anything open */
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(region, 0) == 0 && *vgpu_region_reserved(region, 0) == 0);
    vgpu_region_close(&file);
}

/* The process lets go of 60 shared bytes of its 100, while 40 are open, by itself or by others. */
static void what_is_let_go_of_stays_while_it_is_open(void)
{
    struct vgpu_region_file file;
    CHECK(vgpu_region_open(&file, path, &values) == 0);
    struct vgpu_region_slot *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
    struct vgpu_region *region = file.region;
    CHECK(vgpu_region_reserve(region, slot, 0, 100, 100) == 0);
    vgpu_region_set_shared(slot, 0, 60, 40);
    CHECK(vgpu_region_open_bytes(region, 0) == 40 && vgpu_region_orphan(region, 0, 60) == 40);
    CHECK(*vgpu_region_reserved(region, 0) == 140); /* killed here, it leaves too much, and nobody is refused for long */
    vgpu_region_release(region, slot, 0, 60);
    CHECK(vgpu_region_used(region, 0) == 80 && *vgpu_region_reserved(region, 0) == 80);
    CHECK(vgpu_region_orphan(region, 0, 40) == 0); /* all that is open is orphaned already */
    CHECK(vgpu_region_take_orphaned(region, 0, 30) == 30 && vgpu_region_take_orphaned(region, 0, 30) == 10);
    CHECK(vgpu_region_take_orphaned(region, 0, 30) == 0);
    CHECK(vgpu_region_used(region, 0) == 40 && *vgpu_region_reserved(region, 0) == 40);
    CHECK(vgpu_region_orphan(region, 0, 25) == 25);
    vgpu_region_release(region, slot, 0, 40);
    vgpu_region_set_shared(slot, 0, 0, 10);
    vgpu_region_settle_orphaned(region, 1);
    CHECK(vgpu_region_used(region, 0) == 10 && *vgpu_region_reserved(region, 0) == 10);
    vgpu_region_leave(&file, slot);
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(region, 0) == 0 && *vgpu_region_reserved(region, 0) == 0);
    vgpu_region_close(&file);
}

/* The same, of another pid namespace by its slot: its pid is nobody's here. */
static void the_dead_of_other_namespaces_are_known_by_their_locks(void)
{
    struct vgpu_region_file file;
    const pid_t child = child_with_seventy();
    CHECK(vgpu_region_open(&file, path, &values) == 0);
    struct vgpu_region_slot *other = &file.region->slots[0], *slot = vgpu_region_claim(&file, vgpu_process_start_time(getpid()));
    CHECK(other->pid == child && other->pid_namespace == vgpu_process_namespace() && vgpu_process_namespace() != 0);
    atomic_store(&other->pid_namespace, 1);
    atomic_store(&other->pid, getpid()); /* the first process of each container is 1 */
    vgpu_region_reclaim(&file);
    CHECK(vgpu_region_used(file.region, 0) == 70 && vgpu_region_reserve(file.region, slot, 0, 31, 100) != 0);
    CHECK(vgpu_region_slot_is_held(&file, 0) && !vgpu_region_slot_is_held(&file, 5));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    vgpu_region_reclaim(&file);
    CHECK(other->pid == 0 && vgpu_region_used(file.region, 0) == 0 && slot->pid == getpid());
    vgpu_region_leave(&file, slot);
    vgpu_region_close(&file);
}

static void all_slots_taken(void)
{
    struct vgpu_region_file file;
    CHECK(vgpu_region_open(&file, path, &values) == 0);
    const pid_t parent = getppid();
    for (int i = 0; i < VGPU_MAX_PROCESSES; i++) {
        atomic_store(vgpu_slot_start_time(&file.region->slots[i]), vgpu_process_start_time(parent));
        atomic_store(&file.region->slots[i].pid, parent);
    }
    atomic_store(&file.region->process_count, VGPU_MAX_PROCESSES);
    CHECK(vgpu_region_claim(&file, vgpu_process_start_time(getpid())) == NULL);
    atomic_store(&file.region->process_count, -5); /* a scribbled count is no reason to read outside the file */
    CHECK(vgpu_region_process_count(file.region) == 0 && vgpu_region_used(file.region, 0) == 0);
    vgpu_region_close(&file);
}

int main(void)
{
    const int file = mkstemp(path);
    CHECK(file >= 0);
    close(file);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) values.limit[i] = (struct vgpu_limit){VGPU_UNLIMITED, 100};
    accounting();
    the_dead_are_swept();
    totals_are_repaired_only_when_quiet();
    what_others_have_open_stays();
    what_is_let_go_of_stays_while_it_is_open();
    the_dead_of_other_namespaces_are_known_by_their_locks();
    all_slots_taken();
    unlink(path);
    return 0;
}
