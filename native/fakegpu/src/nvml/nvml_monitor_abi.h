/* The part of the NVML ABI that monitoring tools use and nvml_abi.h has not, written from NVIDIA's public NVML reference.
 *
 * Names and values are NVIDIA's; nothing is copied from nvml.h. Sizes are asserted.
 */
#ifndef FAKEGPU_NVML_MONITOR_ABI_H
#define FAKEGPU_NVML_MONITOR_ABI_H

#include "nvml_abi.h"

typedef enum { NVML_VALUE_UNSIGNED_INT = 1, NVML_VALUE_UNSIGNED_LONG_LONG = 3 } nvmlValueType_t;

typedef union nvmlValue_un {
    double dVal;
    unsigned int uiVal;
    unsigned long long ullVal;
} nvmlValue_t;
static_assert(sizeof(nvmlValue_t) == 8, "nvmlValue_t");

typedef struct nvmlFieldValue_st {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");

typedef struct nvmlSample_st {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;
static_assert(sizeof(nvmlSample_t) == 16, "nvmlSample_t");

typedef struct nvmlViolationTime_st {
    unsigned long long referenceTime, violationTime;
} nvmlViolationTime_t;

typedef struct nvmlEccErrorCounts_st {
    unsigned long long l1Cache, l2Cache, deviceMemory, registerFile;
} nvmlEccErrorCounts_t;

typedef struct nvmlRowRemapperHistogramValues_st {
    unsigned int max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct nvmlProcessUtilizationInfo_v1_st {
    unsigned long long timeStamp;
    unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40, "nvmlProcessUtilizationInfo_v1_t");

typedef struct nvmlProcessesUtilizationInfo_v1_st {
    unsigned int version, processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;
static_assert(sizeof(nvmlProcessesUtilizationInfo_v1_t) == 24, "nvmlProcessesUtilizationInfo_v1_t");

typedef struct nvmlProcessDetail_v1_st {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvmlProcessDetail_v1_t");

typedef struct nvmlProcessDetailList_v1_st {
    unsigned int version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;
static_assert(sizeof(nvmlProcessDetailList_v1_t) == 24, "nvmlProcessDetailList_v1_t");

typedef struct nvmlPciInfoExt_v1_st {
    unsigned int version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;
static_assert(sizeof(nvmlPciInfoExt_v1_t) == 64, "nvmlPciInfoExt_v1_t");

typedef struct nvmlTemperature_v1_st {
    unsigned int version;
    int sensorType, temperature;
} nvmlTemperature_v1_t;
static_assert(sizeof(nvmlTemperature_v1_t) == 12, "nvmlTemperature_v1_t");

enum { NVML_MAX_THERMAL_SENSORS_PER_GPU = 3, NVML_MAX_GPU_UTILIZATIONS = 8 };

typedef struct nvmlGpuThermalSettings_st {
    unsigned int count;
    struct {
        int controller, defaultMinTemp, defaultMaxTemp, currentTemp, target;
    } sensor[NVML_MAX_THERMAL_SENSORS_PER_GPU];
} nvmlGpuThermalSettings_t;
static_assert(sizeof(nvmlGpuThermalSettings_t) == 64, "nvmlGpuThermalSettings_t");

typedef struct nvmlGpuDynamicPstatesInfo_st {
    unsigned int flags;
    struct {
        unsigned int bIsPresent, percentage, incThreshold, decThreshold;
    } utilization[NVML_MAX_GPU_UTILIZATIONS];
} nvmlGpuDynamicPstatesInfo_t;
static_assert(sizeof(nvmlGpuDynamicPstatesInfo_t) == 132, "nvmlGpuDynamicPstatesInfo_t");

typedef struct nvmlComputeInstanceProfileInfo_v2_st {
    unsigned int version;
    unsigned int id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount,
        sharedJpegCount, sharedOfaCount;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "nvmlComputeInstanceProfileInfo_v2_t");

typedef struct nvmlGpmSupport_st {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

#endif
