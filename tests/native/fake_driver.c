// A driver's library (libcuda.so.1) without devices. The environment sets its answers: its version, FAKE_DRIVER_VERSION
// (12040 for 12.4), and the result of its start, FAKE_DRIVER_RESULT. .ci/cuda.sh shows what fastagg reports about it.
#include <stdlib.h>
#include <string.h>

static int number(const char* name) {
  const char* given = getenv(name);
  return given != NULL ? atoi(given) : 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return number("FAKE_DRIVER_RESULT");
}

int cuDriverGetVersion(int* found) {
  *found = number("FAKE_DRIVER_VERSION");
  return 0;
}

int cuDeviceGetCount(int* found) {
  *found = 0;
  return 0;
}

static int not_supported(void) { return 801; }

int cuGetProcAddress_v2(const char* name, void** found, int version, unsigned long long flags, int* status) {
  (void)version, (void)flags;
  if (status != NULL) *status = 0;
  *found = (void*)not_supported;
  if (strcmp(name, "cuInit") == 0) *found = (void*)cuInit;
  if (strcmp(name, "cuDriverGetVersion") == 0) *found = (void*)cuDriverGetVersion;
  if (strcmp(name, "cuDeviceGetCount") == 0) *found = (void*)cuDeviceGetCount;
  if (strcmp(name, "cuGetProcAddress") == 0) *found = (void*)cuGetProcAddress_v2;
  return 0;
}

int cuGetProcAddress(const char* name, void** found, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
