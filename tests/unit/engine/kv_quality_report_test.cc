#include "engine/quality/kv_quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

KvQualityReport sample(size_t num_rows) {
  KvQualityReport report{.model = "Tiny <&> \"model\"",
                         .weights = "f32",
                         .text_tokens = 9000,
                         .context = 512,
                         .chunks = 6,
                         .scored_tokens = 1530,
                         .baseline_ppl = 17.25,
                         .baseline_bytes_per_token = 23040,
                         .rows = {}};
  for (size_t i = 0; i < num_rows; ++i)
    report.rows.push_back({.kv = "nvfp4:edges=" + std::to_string(i) + ",32",
                           .policy = "search",
                           .conditioning = "full",
                           .edges = std::to_string(i) + ",32",
                           .ppl = 17.3,
                           .kld_mean = 0.0028 * (1.0 + 0.001 * static_cast<double>(i)),
                           .kld_p99 = 0.02,
                           .top1_agreement = 0.975,
                           .base_bits = 4.5,
                           .effective_bits = 5.9,
                           .bytes_per_token = 6480});
  return report;
}

TEST(KvQualityReport, JsonHasTheFixedNames) {
  const auto json = nlohmann::json::parse(to_json(sample(2)));
  EXPECT_EQ(json["model"], "Tiny <&> \"model\"");
  EXPECT_EQ(json["text_tokens"], 9000);
  EXPECT_EQ(json["context"], 512);
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& row = json["rows"][1];
  EXPECT_EQ(row["kv"], "nvfp4:edges=1,32");
  for (const char* name : {"policy", "conditioning", "edges"}) EXPECT_TRUE(row[name].is_string()) << name;
  for (const char* name :
       {"ppl", "kld_mean", "kld_p99", "top1_agreement", "base_bits", "effective_bits", "bytes_per_token"})
    EXPECT_TRUE(row[name].is_number()) << name;
}

TEST(KvQualityReport, JsonSurvivesNamesThatAreNotUtf8) {
  KvQualityReport report = sample(1);
  report.model = "bad \xff name";
  EXPECT_TRUE(nlohmann::json::accept(to_json(report)));
}

TEST(KvQualityReport, TableColumnsLineUp) {
  KvQualityReport report = sample(3);
  report.rows[1].kv = "f16";
  const std::string table = to_table(report);
  std::vector<size_t> widths;
  for (size_t begin = table.find("\n\n") + 2; begin < table.size();) {
    const size_t end = table.find('\n', begin);
    widths.push_back(end - begin);
    begin = end + 1;
  }
  ASSERT_EQ(widths.size(), 4u);
  for (const size_t width : widths) EXPECT_EQ(width, widths[0]);
}

TEST(KvQualityReport, PlotLabelsNeverOverlap) {
  const std::string svg = to_svg(sample(30));
  EXPECT_THAT(svg, HasSubstr("Tiny &lt;&amp;&gt; &quot;model&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  const std::regex label(R"re(<text x="([0-9.]+)" y="([0-9.]+)" fill="[^"]*">nvfp4)re");
  std::vector<double> y;
  double lowest = 0.0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), label), end; it != end; ++it) y.push_back(std::stod((*it)[2]));
  ASSERT_EQ(y.size(), 30u);
  std::sort(y.begin(), y.end());
  for (size_t i = 1; i < y.size(); ++i) EXPECT_GE(y[i] - y[i - 1], 12.0);
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, std::regex(R"re(height="([0-9]+)")re")));
  lowest = y.back();
  EXPECT_LT(lowest, std::stod(size[1]));
}

TEST(KvQualityReport, PlotsDivergencesOfZeroAndNone) {
  KvQualityReport report = sample(2);
  for (KvQualityRow& row : report.rows) row.kld_mean = 0.0;
  EXPECT_THAT(to_svg(report), Not(HasSubstr("nan")));
  EXPECT_THAT(to_svg(report), Not(HasSubstr("inf")));
  report.rows.clear();
  EXPECT_THAT(to_svg(report), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace kvant::engine
