#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "kvant/attn/kernel_table.h"

namespace kvant::attn {
namespace {

TEST(SupportMatrix, CommittedPageMatchesTheKernelTable) {
  const std::string path = std::string(KVANT_SOURCE_DIR) + "/docs/support_matrix.md";
  const std::string generated = support_matrix_markdown();
  if (std::getenv("KVANT_REGENERATE") != nullptr) std::ofstream(path) << generated;
  std::ifstream file(path);
  const std::string committed{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(committed, generated) << "KVANT_REGENERATE=1 ctest -R SupportMatrix writes " << path;
}

}  // namespace
}  // namespace kvant::attn
