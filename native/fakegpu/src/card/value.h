/* Quantities of a card that nothing here measures, shared by all processes of the machine: value.def lists them. */
#ifndef FAKEGPU_VALUE_H
#define FAKEGPU_VALUE_H

#include <stdint.h>

#define FG_UNKNOWN INT64_MIN

enum fg_value {
#define VALUE(name, at_first) FG_VALUE_##name,
#include "card/value.def"
#undef VALUE
    FG_VALUES
};

/* FG_VALUES if there is none of that name. */
enum fg_value fg_value_named(const char *name);

/* What it is when nobody has set it. */
int64_t fg_value_at_first(enum fg_value value);

#endif
