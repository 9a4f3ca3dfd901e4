#include "machine/fault_call.h"

#include <string.h>

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
