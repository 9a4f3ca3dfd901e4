/* What a module's code defines (symbol.c). */
#ifndef FAKEGPU_DRIVER_SYMBOL_H
#define FAKEGPU_DRIVER_SYMBOL_H

#include "driver/driver.h"

/* Device memory for the module's variables, with their initial values. On failure those that there are stay, for fg_end_symbols. */
CUresult fg_add_variables(CUmodule module, CUcontext context);

void fg_end_symbols(CUmodule module);

/* Where a variable of the module lies, and its size; either may be NULL. */
CUresult fg_module_variable(CUmodule module, const char *name, bool managed_only, CUdeviceptr *pointer, size_t *bytes);

#endif
