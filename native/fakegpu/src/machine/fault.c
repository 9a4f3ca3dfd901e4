#include "machine/fault.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "machine/machine.h"

int fg_fault(enum fg_call call)
{
    static _Atomic int made[FG_CALLS];
    const struct fg_machine *machine = fg_machine();
    if (machine == NULL || machine->fault_count == 0) return 0;
    const int before = made[call]++;
    for (int i = 0; i < machine->fault_count; i++) {
        const struct fg_fault *fault = &machine->faults[i];
        if (fault->call == call && before >= fault->after && (fault->times == 0 || before < fault->after + fault->times))
            return fault->result;
    }
    return 0;
}

static void wait_for(const char *path)
{
    static const struct timespec pause = {.tv_nsec = 1000000};
    char waiting[sizeof((struct fg_gate *)NULL)->until + sizeof ".waiting"];
    if (access(path, F_OK) == 0) return;
    snprintf(waiting, sizeof waiting, "%s.waiting", path);
    const int file = open(waiting, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0) close(file);
    while (access(path, F_OK) != 0) nanosleep(&pause, NULL);
}

void fg_gate(enum fg_call call, int card)
{
    const struct fg_machine *machine = fg_machine();
    for (int i = 0; machine != NULL && i < machine->gate_count; i++)
        if (machine->gates[i].call == call && machine->gates[i].card == card) wait_for(machine->gates[i].until);
}
