#include "engine/cache/kv_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;

std::string shown(std::string_view text, int32_t num_layers) {
  const auto specs = parse_kv_layers(text, num_layers);
  if (!specs) return specs.error().message();
  std::string out;
  for (const auto& spec : *specs) out += spec ? std::string(attn::to_string(spec->k_format)) + " " : "- ";
  return out;
}

TEST(KvLayers, TakesTheFirstRuleThatNamesALayer) {
  EXPECT_EQ(shown("", 2), "- - ");
  EXPECT_EQ(shown("0,3=bf16;*=nvfp4", 4), "bf16 nvfp4 nvfp4 bf16 ");
  EXPECT_EQ(shown("1-2=e4m3;2-3=f16", 5), "- e4m3 e4m3 f16 - ");
  EXPECT_EQ(shown("1=nvfp4:cond=none:edges=0,16;", 2), "- nvfp4 ");
  EXPECT_EQ(parse_kv_layers("1=nvfp4:edges=0,16", 2).value()[1]->edges.tail, 16);
  EXPECT_EQ(shown("0=k=e4m3/v=nvfp4", 1), "e4m3 ");
}

TEST(KvLayers, NamesWhatIsWrong) {
  EXPECT_THAT(shown("4=bf16", 4), HasSubstr("there is no layer 4; the model has 0 to 3"));
  EXPECT_THAT(shown("0-99999999999=bf16", 4), HasSubstr("'0-99999999999' is no layer"));
  for (const char* bad : {"3-1=bf16", "x=bf16", "=bf16", "-1=bf16", "1,,2=bf16"})
    EXPECT_THAT(shown(bad, 4), HasSubstr("is no layer")) << bad;
  EXPECT_THAT(shown("0", 4), HasSubstr("'0' is no rule"));
  EXPECT_THAT(shown("0=zzz", 4), HasSubstr("zzz"));
  EXPECT_THAT(shown("*=auto", 4), HasSubstr("auto is a choice for all layers"));
}

}  // namespace
}  // namespace kvant::engine
