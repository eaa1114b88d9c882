#include "engine/loader/gguf.h"

#include <cstdint>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvant::engine;
  const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return 0;
  for (const GgufTensor& tensor : file->tensors()) {
    const int64_t rows = tensor.num_elements() / tensor.shape[0];
    std::vector<float> row(static_cast<size_t>(tensor.shape[0]));
    dequantise_rows(tensor, 0, 1, row.data());
    dequantise_rows(tensor, rows - 1, rows, row.data());
  }
  for (const auto& [key, value] : file->metadata()) {
    static_cast<void>(file->get_int(key));
    static_cast<void>(file->get_ints(key));
    static_cast<void>(file->get_floats(key));
  }
  return 0;
}
