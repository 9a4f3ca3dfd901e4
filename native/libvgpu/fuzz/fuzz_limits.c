/* The parser of the limits file and of amounts: any bytes at all are read without harm, and never allow more than they
 * state. */
#include <string.h>

#include "config/config.h"
#include "config/quota.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char header[] = "hami-limits 1\n";
    struct vgpu_config config;
    /* As it is, and as what follows a good first line. */
    if (vgpu_config_parse_file((const char *)data, size, &config) != 0 && config.device_count != 0) __builtin_trap();
    char text[sizeof header + 4096];
    const size_t body = size < 4096 ? size : 4096;
    memcpy(text, header, sizeof header - 1);
    memcpy(text + sizeof header - 1, data, body);
    if (vgpu_config_parse_file(text, sizeof header - 1 + body, &config) != 0 && config.device_count != 0) __builtin_trap();
    if (config.device_count > VGPU_MAX_DEVICES || !vgpu_config_limits_anything(&config)) __builtin_trap();
    for (size_t i = 0; i < config.device_count; i++) {
        const struct vgpu_limit limit = config.listed[i];
        if (limit.core_percent < 1 || limit.core_percent > 100 || memchr(config.uuid[i], 0, VGPU_UUID_BYTES) == NULL) __builtin_trap();
        (void)vgpu_config_limit(&config, config.uuid[i], (int)i);
    }
    if (vgpu_config_limit(&config, "GPU-not-listed-in-any-input", 0).memory_bytes != 0) __builtin_trap();
    /* An amount. */
    char amount[64] = {0};
    memcpy(amount, data, size < sizeof amount - 1 ? size : sizeof amount - 1);
    uint64_t bytes = 12345;
    if (vgpu_config_parse_bytes(amount, &bytes) != 0 && bytes != 12345) __builtin_trap();
    return 0;
}
