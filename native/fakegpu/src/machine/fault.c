#include "fault.h"

#include <string.h>

#include "machine.h"

enum fg_call fg_call_named(const char *name)
{
    static const char *const names[] = {
#define X(call, text) text,
        FG_FAULT_CALLS(X)
#undef X
    };
    int call = 0;
    while (call < FG_CALLS && strcmp(names[call], name) != 0) call++;
    return (enum fg_call)call;
}

int fg_fault(enum fg_call call)
{
    static _Atomic int made[FG_CALLS];
    const struct fg_machine *machine = fg_machine();
    if (machine == NULL || machine->fault_count == 0) return 0;
    const int before = made[call]++;
    for (int i = 0; i < machine->fault_count; i++) {
        const struct fg_fault *fault = &machine->faults[i];
        if (fault->call == call && before >= fault->after && (fault->times == 0 || before < fault->after + fault->times)) return fault->result;
    }
    return 0;
}
