#include "machine/fault.h"

#include <stddef.h>

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
