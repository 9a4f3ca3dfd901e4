#include "config/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "config/quota.h"

/* Nothing of the card; what a program has of it already it keeps, and runs as little as can be. */
static const struct vgpu_limit NOTHING = {.memory_bytes = 0, .core_percent = 1};
static const struct vgpu_limit NO_LIMIT = {.memory_bytes = VGPU_UNLIMITED, .core_percent = 100};

#define BLANKS " \t\r\n"

static bool is_end(const char *text) { return text[strspn(text, BLANKS)] == '\0'; }

/* "k", "KB", "Ki", "KiB" and so on: bits to shift by; 0 for none. */
static int unit_shift(const char *unit)
{
    static const char letters[] = "kmgt";
    const size_t length = strcspn(unit, BLANKS);
    if (!is_end(unit + length)) return -EINVAL;
    if (length == 0) return 0;
    const char *letter = strchr(letters, tolower((unsigned char)*unit)), *rest = unit + 1;
    if (letter == NULL) return -EINVAL;
    const bool usual = length == 1 || (length == 2 && strchr("bBiI", *rest) != NULL) || (length == 3 && strncasecmp(rest, "ib", 2) == 0);
    return usual ? 10 * (int)(letter - letters + 1) : -EINVAL;
}

/* A number of whole digits, decimal or 0x hexadecimal, after blanks; *rest is what follows it. */
static int parse_whole(const char *text, unsigned long long *number, char **rest)
{
    text += strspn(text, BLANKS);
    if (!isdigit((unsigned char)*text)) return -EINVAL; /* strtoull would take "-1" for a large number */
    errno = 0;
    *number = strtoull(text, rest, text[0] == '0' && (text[1] == 'x' || text[1] == 'X') ? 16 : 10);
    return errno == ERANGE ? -ERANGE : 0;
}

/* Millionths; further digits are left out, so that it is never more than is written. `*rest` is moved behind it. */
static uint64_t parse_millionths(char **rest, bool *more)
{
    uint64_t millionths = 0;
    for (int digits = 0; digits < 6 || isdigit((unsigned char)**rest); digits++) {
        const int digit = isdigit((unsigned char)**rest) ? *(*rest)++ - '0' : 0;
        if (digits < 6)
            millionths = millionths * 10 + (uint64_t)digit;
        else
            *more = *more || digit != 0;
    }
    return millionths;
}

int vgpu_config_parse_bytes(const char *text, uint64_t *bytes)
{
    unsigned long long number;
    uint64_t millionths = 0;
    bool more = false; /* than the millionths */
    char *rest;
    const int error = parse_whole(text, &number, &rest);
    if (error != 0) return error;
    if (*rest == '.' && isdigit((unsigned char)rest[1]) && strpbrk(text, "xX") == NULL) {
        rest++;
        millionths = parse_millionths(&rest, &more);
    }
    const int shift = unit_shift(rest + strspn(rest, BLANKS));
    if (shift < 0) return shift;
    if (shift != 0 && number >> (64 - shift) != 0) return -ERANGE;
    const uint64_t found = ((uint64_t)number << shift) + (millionths << shift) / 1000000;
    if (found == 0 && (millionths != 0 || more)) return -EINVAL; /* 0 would mean no limit */
    *bytes = found;
    return 0;
}

/* A whole number without unit or sign, 100 at most. */
static int parse_percent(const char *text, uint64_t *percent)
{
    unsigned long long number;
    char *rest;
    const int error = parse_whole(text, &number, &rest);
    if (error != 0) return error;
    if (!is_end(rest)) return -EINVAL;
    *percent = number < 100 ? number : 100;
    return 0;
}

/* Which of the names it is, whatever its case and the blanks around it; -EINVAL: none. */
static int parse_name(const char *text, const char *const *names, int count)
{
    text += strspn(text, BLANKS);
    const size_t length = strcspn(text, BLANKS);
    for (int i = 0; i < count && is_end(text + length); i++)
        if (strlen(names[i]) == length && strncasecmp(names[i], text, length) == 0) return i;
    return -EINVAL;
}

static int parse_policy(const char *text, enum vgpu_core_policy *policy)
{
    static const char *const names[] = {
        [VGPU_CORE_POLICY_DEFAULT] = "default", [VGPU_CORE_POLICY_FORCE] = "force", [VGPU_CORE_POLICY_DISABLE] = "disable"};
    const int found = parse_name(text, names, 3);
    if (found < 0) return found;
    *policy = (enum vgpu_core_policy)found;
    return 0;
}

static int parse_switch(const char *text, bool *on)
{
    static const char *const names[] = {"0", "1", "false", "true"};
    const int found = parse_name(text, names, 4);
    if (found < 0) return found;
    *on = found % 2 == 1;
    return 0;
}

static void allow_nothing(struct vgpu_config *config)
{
    *config = (struct vgpu_config){.source = config->source, .core_policy = VGPU_CORE_POLICY_FORCE};
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) config->indexed[i] = NOTHING;
}

/* "memory_bytes 1 core_percent 2": any order, unknown keys skipped. Without both, or with a number that cannot be read, it allows
 * nothing: a misspelt key must not lift what it was to limit. */
static struct vgpu_limit parse_pairs(char **rest, const char *uuid)
{
    uint64_t bytes, percent = 0;
    bool has_bytes = false, has_percent = false;
    const char *key;
    while ((key = strtok_r(NULL, " \t", rest)) != NULL) {
        const char *value = strtok_r(NULL, " \t", rest);
        const bool memory = strcmp(key, "memory_bytes") == 0, cores = strcmp(key, "core_percent") == 0;
        if (!memory && !cores) {
            vgpu_log(VGPU_LOG_WARN, "limits file: device %s: unknown key %s ignored", uuid, key);
            continue;
        }
        if (value == NULL || (memory ? vgpu_config_parse_bytes(value, &bytes) : parse_percent(value, &percent)) != 0) {
            vgpu_log(VGPU_LOG_REFUSAL, "limits file: device %s: %s wants a number, not %s; the device may not be used", uuid, key,
                     value != NULL ? value : "nothing");
            return NOTHING;
        }
        has_bytes = has_bytes || memory;
        has_percent = has_percent || cores;
    }
    if (has_bytes && has_percent)
        return (struct vgpu_limit){.memory_bytes = bytes == 0 ? VGPU_UNLIMITED : bytes,
                                   .core_percent = percent == 0 ? 100 : (uint32_t)percent};
    vgpu_log(VGPU_LOG_REFUSAL, "limits file: device %s: %s is missing; the device may not be used", uuid,
             has_bytes ? "core_percent" : "memory_bytes");
    return NOTHING;
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

/* "1", and until when; a time that cannot be read is none. */
static int parse_block(const char *value, struct vgpu_config *config)
{
    char held[8];
    value += strspn(value, " \t");
    const size_t length = strcspn(value, " \t");
    if (length >= sizeof held) return -EINVAL;
    memcpy(held, value, length);
    held[length] = '\0';
    const int error = parse_switch(held, &config->priority_block);
    if (error != 0) return error;
    const char *until = value + length;
    if (vgpu_config_parse_bytes(until, &config->priority_block_until_s) != 0) config->priority_block_until_s = 0;
    return 0;
}

/* A line "key value" of those that state when the limits hold; -ENOENT: it is none of them. */
static int parse_setting(const char *key, const char *value, struct vgpu_config *config)
{
    bool holds;
    if (strcmp(key, "policy") == 0) return parse_policy(value, &config->core_policy);
    if (strcmp(key, "oversubscribe") == 0) return parse_switch(value, &config->oversubscribe);
    if (strcmp(key, "priority_block") == 0) return parse_block(value, config);
    if (strcmp(key, "utilization_switch") != 0) return -ENOENT;
    const int error = parse_switch(value, &holds);
    if (error == 0) config->utilization_off = !holds;
    return error;
}

/* Without a value of its own the line is as unreadable as with a wrong one. */
static int parse_line(char *line, struct vgpu_config *config)
{
    line += strspn(line, " \t");
    if (*line == '\0' || *line == '#') return 0;
    char *rest = line + strcspn(line, " \t");
    if (*rest != '\0') *rest++ = '\0';
    if (strcmp(line, "device") == 0) {
        parse_device(&rest, config);
        return 0;
    }
    const int error = parse_setting(line, rest, config);
    if (error == -EINVAL) vgpu_log(VGPU_LOG_REFUSAL, "limits file: line \"%s%s%s\" cannot be read", line, *rest != '\0' ? " " : "", rest);
    if (error != -ENOENT) return error;
    const char *path = strcmp(line, "region") == 0 ? strtok_r(rest, " \t", &rest) : NULL;
    if (path != NULL)
        parse_region(path, config);
    else
        vgpu_log(VGPU_LOG_WARN, "limits file: line \"%s\" ignored", line);
    return 0;
}

static int parse_lines(const char *text, size_t length, struct vgpu_config *config)
{
    char line[256]; /* the longest line we write has about 180 characters */
    for (size_t at = 0; at < length;) {
        const char *end = memchr(text + at, '\n', length - at);
        const size_t size = end != NULL ? (size_t)(end - text) - at : length - at;
        if (size < sizeof line) {
            memcpy(line, text + at, size);
            line[size] = '\0';
            line[strcspn(line, "\r")] = '\0';
            if (parse_line(line, config) != 0) return -EINVAL;
        } else {
            vgpu_log(VGPU_LOG_WARN, "limits file: a line of %zu characters ignored", size);
        }
        at += size + 1;
    }
    return 0;
}

int vgpu_config_parse_file(const char *text, size_t length, struct vgpu_config *config)
{
    *config = (struct vgpu_config){.source = VGPU_CONFIG_FILE};
    static const char header[] = "hami-limits 1";
    const size_t header_length = sizeof header - 1;
    const bool known = length >= header_length && memcmp(text, header, header_length) == 0 &&
                       (length == header_length || text[header_length] == '\n' || text[header_length] == '\r');
    if (!known) vgpu_log(VGPU_LOG_REFUSAL, "limits file: the first line must be \"%s\"", header);
    if (known && parse_lines(text + header_length, length - header_length, config) == 0) return 0;
    allow_nothing(config);
    return -EINVAL;
}

typedef const char *(*variable_lookup)(const char *name);
typedef int (*number_parser)(const char *text, uint64_t *number);

enum reading { ABSENT, READ, UNREADABLE };

/* A variable that is not there, empty or 0 is absent: it sets no limit. */
static enum reading read_variable(variable_lookup lookup, const char *name, number_parser parse, uint64_t *number)
{
    const char *text = lookup(name);
    if (text == NULL || is_end(text)) return ABSENT;
    if (parse(text, number) != 0) return UNREADABLE;
    return *number != 0 ? READ : ABSENT;
}

/* One of HAMi's two limits, for all cards; the numbered variable goes before the general one, whose card can be used without it. */
struct variables {
    const char *name, *example;
    number_parser parse;
    uint64_t general;
    enum reading general_reading;
};

static void read_general(variable_lookup lookup, struct variables *limit)
{
    limit->general_reading = read_variable(lookup, limit->name, limit->parse, &limit->general);
    if (limit->general_reading == UNREADABLE)
        vgpu_log(VGPU_LOG_REFUSAL, "%s=%s is no %s: cards without a limit of their own cannot be used; correct the variable", limit->name,
                 lookup(limit->name), limit->example);
}

static enum reading read_for_card(variable_lookup lookup, const struct variables *limit, int index, uint64_t *number)
{
    char numbered[64];
    snprintf(numbered, sizeof numbered, "%s_%d", limit->name, index);
    const enum reading reading = read_variable(lookup, numbered, limit->parse, number);
    if (reading == UNREADABLE)
        vgpu_log(VGPU_LOG_REFUSAL, "%s=%s is no %s: card %d cannot be used; correct the variable", numbered, lookup(numbered),
                 limit->example, index);
    if (reading != ABSENT) return reading;
    *number = limit->general;
    return limit->general_reading;
}

static int parse_policy_variable(variable_lookup lookup, struct vgpu_config *config)
{
    static const char name[] = "GPU_CORE_UTILIZATION_POLICY";
    const char *text = lookup(name);
    if (text == NULL || is_end(text) || parse_policy(text, &config->core_policy) == 0) return 0;
    vgpu_log(VGPU_LOG_REFUSAL, "%s=%s is none of default, force and disable: cards cannot be used; correct the variable", name, text);
    return -EINVAL;
}

static int parse_oversubscribe_variable(variable_lookup lookup, struct vgpu_config *config)
{
    static const char name[] = "CUDA_OVERSUBSCRIBE";
    const char *text = lookup(name);
    if (text == NULL || is_end(text) || parse_switch(text, &config->oversubscribe) == 0) return 0;
    vgpu_log(VGPU_LOG_REFUSAL, "%s=%s is neither true nor false: cards cannot be used; correct the variable", name, text);
    return -EINVAL;
}

void vgpu_config_parse_environment(const char *(*lookup)(const char *name), struct vgpu_config *config)
{
    struct variables memory = {
        .name = "CUDA_DEVICE_MEMORY_LIMIT", .example = "amount such as 1000m or 1.5G", .parse = vgpu_config_parse_bytes};
    struct variables cores = {.name = "CUDA_DEVICE_SM_LIMIT", .example = "percentage such as 30", .parse = parse_percent};
    *config = (struct vgpu_config){.source = VGPU_CONFIG_ENVIRONMENT};
    read_general(lookup, &memory);
    read_general(lookup, &cores);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        uint64_t bytes, percent;
        const enum reading of_memory = read_for_card(lookup, &memory, i, &bytes), of_cores = read_for_card(lookup, &cores, i, &percent);
        const bool unreadable = of_memory == UNREADABLE || of_cores == UNREADABLE;
        config->indexed[i] = unreadable ? NOTHING
                                        : (struct vgpu_limit){.memory_bytes = of_memory == READ ? bytes : VGPU_UNLIMITED,
                                                              .core_percent = of_cores == READ ? (uint32_t)percent : 100};
    }
    if (parse_policy_variable(lookup, config) != 0 || parse_oversubscribe_variable(lookup, config) != 0) allow_nothing(config);
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

int64_t vgpu_config_blocks_ms(const struct vgpu_config *config, int64_t wall_ms)
{
    const uint64_t until_s = config->priority_block_until_s, now_s = (uint64_t)wall_ms / 1000;
    if (!config->priority_block) return 0;
    if (until_s == 0 || until_s > now_s + VGPU_BLOCK_MS / 1000) return VGPU_BLOCK_MS;
    return until_s > now_s ? (int64_t)(until_s - now_s) * 1000 : 0;
}

bool vgpu_config_limits_anything(const struct vgpu_config *config)
{
    if (config->source == VGPU_CONFIG_FILE) return true;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++)
        if (config->indexed[i].memory_bytes != VGPU_UNLIMITED || config->indexed[i].core_percent != 100) return true;
    return false;
}
