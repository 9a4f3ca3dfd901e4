#include "card/value.h"

#include <string.h>

static const struct {
    const char *name;
    int64_t at_first;
} VALUES[FG_VALUES] = {
#define VALUE(name, at_first) {#name, at_first},
#include "card/value.def"
#undef VALUE
};

enum fg_value fg_value_named(const char *name)
{
    int found = 0;
    while (found < FG_VALUES && strcmp(VALUES[found].name, name) != 0) found++;
    return (enum fg_value)found;
}

int64_t fg_value_at_first(enum fg_value value) { return VALUES[value].at_first; }
