#pragma once

#include "support/temp_dir.h"

#include "engine/loader/safetensors.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace kvant::testing {

/// A folder of checkpoint files, made in a test.
class CheckpointDir {
 public:
  const std::filesystem::path& path() const { return dir_.path(); }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    return dir_.write(name, std::as_bytes(std::span(text)));
  }
  void write(const std::string& name, const engine::SafetensorsWriter& writer) const {
    const Status status = writer.write(dir_.path() / name);
    if (!status.ok()) ADD_FAILURE() << status.message();
  }
  /// A safetensors file with F32 tensors of one element, by name.
  void write_shard(const std::string& name, const std::vector<std::string>& tensors) const {
    engine::SafetensorsWriter writer;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const float value = static_cast<float>(i + 1);
      writer.add_f32(tensors[i], {1}, std::span(&value, 1));
    }
    write(name, writer);
  }

 private:
  TempDir dir_;
};

}  // namespace kvant::testing
