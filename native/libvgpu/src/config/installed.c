#include "config/installed.h"

/* The agent writes "required" over the last eight letters. Volatile: read when it is asked for, not when it is compiled. */
static const volatile char mark[] = "libvgpu limits file: optional";

bool vgpu_limits_file_is_required(void) { return mark[sizeof "libvgpu limits file: " - 1] == 'r'; }
