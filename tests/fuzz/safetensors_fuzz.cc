#include "engine/loader/safetensors.h"

#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvant::engine;
  const auto file = SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return 0;
  for (const SafetensorsTensor& tensor : file->tensors()) static_cast<void>(file->get_f32(tensor.name, tensor.shape));
  return 0;
}
