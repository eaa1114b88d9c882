#include "attention_suite.h"

namespace kvant::bench {

Status run_attention_suite(const AttentionSuiteOptions&, const std::function<void(const std::string&)>&) {
  return {StatusCode::kUnsupported, "needed: CUDA; offered: a build without it; build with -DKVANT_WITH_CUDA=ON"};
}

}  // namespace kvant::bench
