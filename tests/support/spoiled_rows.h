#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include <gtest/gtest.h>

namespace kvant::test {

/// Rows of `width` numbers: those named have no finite one, and all others are those of `clean`.
inline void expect_spoiled_rows(const std::vector<float>& got, const std::vector<float>& clean, size_t width,
                                std::initializer_list<size_t> spoiled) {
  ASSERT_EQ(got.size(), clean.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t row = i / width;
    if (std::find(spoiled.begin(), spoiled.end(), row) != spoiled.end()) {
      ASSERT_FALSE(std::isfinite(got[i])) << "row " << row << ", output " << i % width;
    } else {
      ASSERT_EQ(got[i], clean[i]) << "row " << row << ", output " << i % width;
    }
  }
}

}  // namespace kvant::test
