// A driver of one GPU from before Ampere, as far as reynard/tensor/device.cpp asks it.

#include <cstring>

extern "C" {

int cuInit(unsigned /*flags*/) {
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGetName(char* name, int size, int /*device*/) {
  std::strncpy(name, "Old GPU", size);
  return 0;
}
// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR is 75, _MINOR 76.
int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  *value = attribute == 75 ? 7 : 5;
  return attribute == 75 || attribute == 76 ? 0 : 1;
}

}  // extern "C"
