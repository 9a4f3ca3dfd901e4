/* What a module's code defines (symbol.c). */
#ifndef FAKEGPU_DRIVER_SYMBOL_H
#define FAKEGPU_DRIVER_SYMBOL_H

#include "driver/driver.h"

/* Device memory for the module's variables, which begin as zero. On failure those that there are stay, for fg_end_symbols. */
CUresult fg_add_variables(CUmodule module, CUcontext context);

void fg_end_symbols(CUmodule module);

#endif
