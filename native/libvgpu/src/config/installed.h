/* Whether this copy of the library was installed by a node agent, which gives every container a limits file.
 *
 * The agent marks the copy that containers mount (services/node-agent, cleanup/installed_files.py). A marked copy that
 * finds no limits file allows nothing: the file was hidden from it. Any other copy is somebody's own, beside HAMi or
 * alone, and takes HAMi's variables then. The mark is in the file, which containers see read-only: no variable, no
 * mount and no name of the file takes it off.
 */
#ifndef VGPU_INSTALLED_H
#define VGPU_INSTALLED_H

#include <stdbool.h>

bool vgpu_limits_file_is_required(void);

#endif
