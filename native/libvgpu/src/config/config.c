#include "config/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "config/quota.h"

static const struct vgpu_limit NOTHING = {.memory_bytes = 0, .core_percent = 100};
static const struct vgpu_limit NO_LIMIT = {.memory_bytes = VGPU_UNLIMITED, .core_percent = 100};

static int unit_shift(const char *unit)
{
    static const char letters[] = "kmgt";
    if (*unit == '\0') return 0;
    const char *letter = strchr(letters, tolower((unsigned char)*unit));
    if (letter == NULL) return -EINVAL;
    const char *rest = unit + 1;
    if (*rest != '\0' && strcasecmp(rest, "b") != 0 && strcasecmp(rest, "i") != 0 && strcasecmp(rest, "ib") != 0) return -EINVAL;
    return 10 * (int)(letter - letters + 1);
}

int vgpu_config_parse_bytes(const char *text, uint64_t *bytes)
{
    if (!isdigit((unsigned char)*text)) return -EINVAL; /* strtoull would take "-1" for a large number */
    const int base = text[0] == '0' && (text[1] == 'x' || text[1] == 'X') ? 16 : 10;
    char *unit;
    errno = 0;
    const unsigned long long number = strtoull(text, &unit, base);
    if (errno == ERANGE) return -ERANGE;
    const int shift = unit_shift(unit);
    if (shift < 0) return shift;
    if (shift != 0 && number >> (64 - shift) != 0) return -ERANGE;
    *bytes = (uint64_t)number << shift;
    return 0;
}

static uint32_t core_percent_of(uint64_t number) { return number == 0 || number >= 100 ? 100 : (uint32_t)number; }

static enum vgpu_core_policy core_policy_of(const char *text)
{
    if (strcasecmp(text, "force") == 0) return VGPU_CORE_POLICY_FORCE;
    if (strcasecmp(text, "disable") == 0) return VGPU_CORE_POLICY_DISABLE;
    return VGPU_CORE_POLICY_DEFAULT;
}

/* "memory_bytes 1 core_percent 2": any order, unknown keys skipped. A number that cannot be read allows nothing. */
static struct vgpu_limit parse_pairs(char **rest, const char *uuid)
{
    struct vgpu_limit limit = NO_LIMIT;
    const char *key, *value;
    while ((key = strtok_r(NULL, " \t", rest)) != NULL) {
        value = strtok_r(NULL, " \t", rest);
        const bool memory = strcmp(key, "memory_bytes") == 0, cores = strcmp(key, "core_percent") == 0;
        if (!memory && !cores) {
            vgpu_log(VGPU_LOG_WARN, "limits file: device %s: unknown key %s ignored", uuid, key);
            continue;
        }
        uint64_t number;
        if (value == NULL || vgpu_config_parse_bytes(value, &number) != 0) {
            vgpu_log(VGPU_LOG_ERROR, "limits file: device %s: %s wants a number, not %s; the device may not be used", uuid, key,
                     value != NULL ? value : "nothing");
            return NOTHING;
        }
        if (memory) limit.memory_bytes = number == 0 ? VGPU_UNLIMITED : number;
        if (cores) limit.core_percent = core_percent_of(number);
    }
    return limit;
}

static void parse_device(char **rest, struct vgpu_config *config)
{
    const char *uuid = strtok_r(NULL, " \t", rest);
    if (uuid == NULL || strlen(uuid) >= VGPU_UUID_BYTES || config->device_count == VGPU_MAX_DEVICES) {
        vgpu_log(VGPU_LOG_WARN, "limits file: a device line without a usable uuid, or more than %d of them", VGPU_MAX_DEVICES);
        return;
    }
    strcpy(config->uuid[config->device_count], uuid);
    config->listed[config->device_count] = parse_pairs(rest, config->uuid[config->device_count]);
    config->device_count++;
}

static void parse_region(const char *path, struct vgpu_config *config)
{
    if (path[0] == '/' && strlen(path) < sizeof config->region_path)
        strcpy(config->region_path, path);
    else
        vgpu_log(VGPU_LOG_WARN, "limits file: region %s is no absolute path of less than %d characters; ignored", path,
                 VGPU_REGION_PATH_BYTES);
}

static void parse_line(char *line, struct vgpu_config *config)
{
    char *rest;
    const char *key = strtok_r(line, " \t", &rest);
    if (key == NULL || *key == '#') return;
    if (strcmp(key, "device") == 0) {
        parse_device(&rest, config);
        return;
    }
    const char *value = strtok_r(NULL, " \t", &rest);
    if (value != NULL && strcmp(key, "policy") == 0)
        config->core_policy = core_policy_of(value);
    else if (value != NULL && strcmp(key, "oversubscribe") == 0)
        config->oversubscribe = strcmp(value, "1") == 0;
    else if (value != NULL && strcmp(key, "utilization_switch") == 0)
        config->utilization_off = strcmp(value, "0") == 0;
    else if (value != NULL && strcmp(key, "priority_block") == 0)
        config->priority_block = strcmp(value, "1") == 0;
    else if (value != NULL && strcmp(key, "region") == 0)
        parse_region(value, config);
    else
        vgpu_log(VGPU_LOG_WARN, "limits file: line \"%s\" ignored", key);
}

int vgpu_config_parse_file(const char *text, size_t length, struct vgpu_config *config)
{
    *config = (struct vgpu_config){.source = VGPU_CONFIG_FILE};
    static const char header[] = "hami-limits 1";
    const size_t header_length = sizeof header - 1;
    if (length < header_length || memcmp(text, header, header_length) != 0 ||
        (length > header_length && text[header_length] != '\n' && text[header_length] != '\r'))
        return -EINVAL;
    char line[256]; /* the longest line we write has about 180 characters */
    for (size_t at = header_length; at < length;) {
        const char *end = memchr(text + at, '\n', length - at);
        const size_t size = end != NULL ? (size_t)(end - text) - at : length - at;
        if (size < sizeof line) {
            memcpy(line, text + at, size);
            line[size] = '\0';
            line[strcspn(line, "\r")] = '\0';
            parse_line(line, config);
        } else {
            vgpu_log(VGPU_LOG_WARN, "limits file: a line of %zu characters ignored", size);
        }
        at += size + 1;
    }
    return 0;
}

/* The number in a variable; 0 when it is not there or not usable. */
static uint64_t variable(const char *(*lookup)(const char *), const char *name)
{
    const char *text = lookup(name);
    uint64_t number;
    if (text == NULL || *text == '\0') return 0;
    if (vgpu_config_parse_bytes(text, &number) == 0) return number;
    vgpu_log(VGPU_LOG_WARN, "%s=%s is no amount such as 1000m or 2GiB; ignored", name, text);
    return 0;
}

static uint64_t indexed_variable(const char *(*lookup)(const char *), const char *name, int index, uint64_t otherwise)
{
    char numbered[64];
    snprintf(numbered, sizeof numbered, "%s_%d", name, index);
    const uint64_t number = variable(lookup, numbered);
    return number != 0 ? number : otherwise;
}

void vgpu_config_parse_environment(const char *(*lookup)(const char *name), struct vgpu_config *config)
{
    static const char memory[] = "CUDA_DEVICE_MEMORY_LIMIT", cores[] = "CUDA_DEVICE_SM_LIMIT";
    *config = (struct vgpu_config){.source = VGPU_CONFIG_ENVIRONMENT};
    const uint64_t any_memory = variable(lookup, memory), any_cores = variable(lookup, cores);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        const uint64_t bytes = indexed_variable(lookup, memory, i, any_memory);
        config->indexed[i].memory_bytes = bytes == 0 ? VGPU_UNLIMITED : bytes;
        config->indexed[i].core_percent = core_percent_of(indexed_variable(lookup, cores, i, any_cores));
    }
    const char *policy = lookup("GPU_CORE_UTILIZATION_POLICY");
    if (policy != NULL) config->core_policy = core_policy_of(policy);
    const char *oversubscribe = lookup("CUDA_OVERSUBSCRIBE");
    config->oversubscribe = oversubscribe != NULL && strcmp(oversubscribe, "true") == 0;
}

struct vgpu_limit vgpu_config_limit(const struct vgpu_config *config, const char *uuid, int index)
{
    const bool placed = index >= 0 && index < VGPU_MAX_DEVICES;
    if (!placed) return vgpu_config_limits_anything(config) ? NOTHING : NO_LIMIT;
    if (config->source == VGPU_CONFIG_ENVIRONMENT) return config->indexed[index];
    for (size_t i = 0; i < config->device_count; i++)
        if (strcmp(config->uuid[i], uuid) == 0) return config->listed[i];
    return NOTHING;
}

bool vgpu_config_limits_anything(const struct vgpu_config *config)
{
    if (config->source == VGPU_CONFIG_FILE) return true;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++)
        if (config->indexed[i].memory_bytes != VGPU_UNLIMITED || config->indexed[i].core_percent != 100) return true;
    return false;
}
