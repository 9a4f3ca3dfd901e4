#include "scenario.h"

#include <stdlib.h>
#include <string.h>

static void parse_kernels(char *list, struct tenant *tenant)
{
    char *rest;
    tenant->kinds = 0;
    for (char *item = strtok_r(list, ",", &rest); item != NULL && tenant->kinds < MAX_KINDS; item = strtok_r(NULL, ",", &rest))
        tenant->kernel_ns[tenant->kinds++] = (int64_t)(strtod(item, NULL) * 1e3);
}

static bool parse_tenant_setting(const char *key, char *value, struct tenant *tenant)
{
    const double number = strtod(value, NULL);
    if (strcmp(key, "processes") == 0)
        tenant->processes = (int)number;
    else if (strcmp(key, "kernel_us") == 0)
        parse_kernels(value, tenant);
    else if (strcmp(key, "sync_every") == 0)
        tenant->sync_every = (int)number;
    else if (strcmp(key, "pause_us") == 0)
        tenant->pause_ns = (int64_t)(number * 1e3);
    else if (strcmp(key, "later") == 0)
        tenant->later_percent = (uint32_t)number;
    else if (strcmp(key, "begins_s") == 0)
        tenant->begins_ns = (int64_t)(number * 1e9);
    else if (strcmp(key, "same_container") == 0)
        tenant->same_container = number != 0;
    else if (strcmp(key, "startup_ms") == 0)
        tenant->startup_ns = (int64_t)(number * 1e6);
    else if (strcmp(key, "ends_s") == 0)
        tenant->ends_ns = (int64_t)(number * 1e9);
    else
        return false;
    return true;
}

static bool parse_setting(const char *key, char *value, struct scenario *scenario)
{
    const double number = strtod(value, NULL);
    if (strcmp(key, "sm") == 0)
        scenario->sm_count = (int)number;
    else if (strcmp(key, "seconds") == 0)
        scenario->seconds = number;
    else if (strcmp(key, "settle_s") == 0)
        scenario->settle_s = number;
    else if (strcmp(key, "sample_ms") == 0)
        scenario->sample_ns = (int64_t)(number * 1e6);
    else if (strcmp(key, "delay_ms") == 0)
        scenario->delay_ns = (int64_t)(number * 1e6);
    else if (strcmp(key, "missing") == 0)
        scenario->missing_percent = (unsigned int)number;
    else if (strcmp(key, "utilization") == 0)
        scenario->utilization = number != 0;
    else if (strcmp(key, "whole_samples") == 0)
        scenario->whole_samples = number != 0;
    else if (strcmp(key, "time_slice_us") == 0)
        scenario->time_slice_ns = (int64_t)(number * 1e3);
    else if (strcmp(key, "switch_us") == 0)
        scenario->context_switch_ns = (int64_t)(number * 1e3);
    else if (strcmp(key, "wake_late_us") == 0)
        scenario->wake_late_ns = (int64_t)(number * 1e3);
    else if (strcmp(key, "change_s") == 0)
        scenario->change_ns = (int64_t)(number * 1e9);
    else if (strcmp(key, "seed") == 0)
        scenario->seed = (uint64_t)number;
    else
        return false;
    return true;
}

const char *scenario_parse(char *text, struct scenario *scenario)
{
    *scenario = (struct scenario){.sm_count = 132,
                                  .seconds = 12,
                                  .settle_s = 2,
                                  .sample_ns = 167000000,
                                  .time_slice_ns = 2000000,
                                  .context_switch_ns = 50000,
                                  .wake_late_ns = 200000,
                                  .utilization = true,
                                  .seed = 1};
    struct tenant *tenant = NULL;
    char *rest;
    for (char *setting = strtok_r(text, " \n", &rest); setting != NULL; setting = strtok_r(NULL, " \n", &rest)) {
        char *value = strchr(setting, '=');
        if (value == NULL) return setting;
        *value++ = '\0';
        if (strcmp(setting, "tenant") == 0) {
            if (scenario->tenant_count == MAX_TENANTS) return setting;
            tenant = &scenario->tenants[scenario->tenant_count++];
            *tenant = (struct tenant){.percent = (uint32_t)strtoul(value, NULL, 10), .processes = 1, .kinds = 1, .kernel_ns = {1000000}};
            tenant->ends_ns = INT64_MAX;
            if (tenant->percent < 1 || tenant->percent > 100) return setting;
        } else if (!(tenant != NULL && parse_tenant_setting(setting, value, tenant)) && !parse_setting(setting, value, scenario)) {
            return setting;
        }
    }
    return scenario->tenant_count > 0 && scenario->sm_count > 0 ? NULL : "tenant";
}
