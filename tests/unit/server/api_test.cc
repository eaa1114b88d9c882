// The endpoints as functions: no sockets, no model.
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/json.h"
#include "support/fake_host.h"

namespace kvant::server {
namespace {

using testing::FakeHost;
using ::testing::HasSubstr;

Json json_of(const HttpResponse& response) { return Json::parse(FakeHost::body_of(response)); }

TEST(Api, CompletesAPrompt) {
  FakeHost fake;
  const Json answer = json_of(fake.post("/v1/completions", R"({"prompt":"ab","max_tokens":3})"));
  EXPECT_EQ(answer["choices"][0]["text"], "hel");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(answer["usage"]["total_tokens"], 5);
  EXPECT_EQ(answer["model"], "fake");
}

TEST(Api, StreamsTheSame) {
  FakeHost fake;
  const HttpResponse response = fake.post("/v1/completions", R"({"prompt":"ab","stream":true})");
  EXPECT_EQ(response.content_type, "text/event-stream");
  const std::string body = FakeHost::body_of(response);
  EXPECT_THAT(body, HasSubstr("\"text\":\"h\""));
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(fake.host().requests(), 0);
}

TEST(Api, PassesFieldsOn) {
  FakeHost fake;
  fake.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"temperature":0.5,"top_p":0.9,
    "top_k":-1,"min_p":0.1,"seed":7,"stop":["x"],"logit_bias":{"65":-100},"presence_penalty":1,"frequency_penalty":-1,
    "repetition_penalty":1.1,"max_completion_tokens":4})");
  const engine::GenerateRequest& request = fake.engine().last_request;
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  ASSERT_EQ(request.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(request.sampling.logit_bias[0].token, 65);
  EXPECT_EQ(request.max_tokens, 4);
}

TEST(Api, EndsRequestsWhoseClientIsGone) {
  FakeHost fake;
  fake.engine().frozen = true;
  HttpRequest request{.method = "POST", .path = "/v1/completions", .body = R"({"prompt":"ab"})"};
  request.client_gone = [] { return true; };
  fake.handle(request);
  fake.engine().frozen = false;
  EXPECT_EQ(fake.engine().cancelled, 1);
  EXPECT_EQ(fake.host().requests(), 0);
  const HttpResponse stream = fake.post("/v1/completions", R"({"prompt":"ab","stream":true})");
  stream.stream([](std::string_view) { return false; });
  EXPECT_EQ(fake.host().requests(), 0);
}

TEST(Api, StartsAStreamWithTheFirstToken) {
  FakeHost fake("hello");
  fake.engine().frozen = true;
  HttpRequest request{.method = "POST",
                      .path = "/v1/chat/completions",
                      .body = R"({"messages":[{"role":"user","content":"a"}],"stream":true})"};
  request.client_gone = [] { return true; };
  std::string sent;
  const auto keep = [&](std::string_view part) { return !sent.append(part).empty(); };
  fake.handle(request).stream(keep);
  EXPECT_EQ(sent, "") << "nothing can have been generated";
  fake.engine().frozen = false;
  request.client_gone = nullptr;
  fake.handle(request).stream(keep);
  EXPECT_LT(sent.find("assistant"), sent.find("\"content\":\"h\""));
}

TEST(Api, FindsToolCallsInAnswers) {
  FakeHost fake("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>");
  const std::string fields = R"("messages":[{"role":"user","content":"a"}],
    "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const Json answer = json_of(fake.post("/v1/chat/completions", "{" + fields + "}"));
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  const std::string stream = FakeHost::body_of(fake.post("/v1/chat/completions", "{\"stream\":true," + fields + "}"));
  EXPECT_THAT(stream, HasSubstr("\"finish_reason\":\"tool_calls\""));
  EXPECT_THAT(stream, HasSubstr("\"arguments\":\"{\\\"a\\\":1}\""));
  EXPECT_THAT(stream, ::testing::Not(HasSubstr("<tool_call>")));
}

TEST(Api, ForcesACallThatIsRequired) {
  FakeHost fake("x");
  fake.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"required",
    "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]})");
  ASSERT_TRUE(fake.engine().last_request.shape);
  EXPECT_EQ(fake.engine().last_request.shape->before, "<tool_call>\n");
  EXPECT_THAT(fake.engine().last_request.shape->schema, HasSubstr("\"const\":\"f\""));
}

TEST(Api, RefusesWrongTools) {
  FakeHost fake;
  const auto param = [&](const std::string& rest) {
    const HttpResponse response =
        fake.post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],)" + rest + "}");
    EXPECT_EQ(response.status, 400) << rest;
    return json_of(response)["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(param(R"("tools":{})"), "tools");
  EXPECT_EQ(param(R"("tools":[1])"), "tools[0]");
  EXPECT_EQ(param(R"("tools":[{"function":{"name":"a b"}}])"), "tools[0].function.name");
  EXPECT_EQ(param(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(param(R"("tool_choice":"sometimes")"), "tool_choice");
  EXPECT_EQ(param(R"("tools":[{"function":{"name":"a"}}],"tool_choice":{"function":{"name":"b"}})"), "tool_choice");
  EXPECT_EQ(param(R"("response_format":{"type":"xml"})"), "response_format.type");
  EXPECT_EQ(param(R"("response_format":{"type":"json_schema"})"), "response_format.json_schema");
}

TEST(Api, TokenizesBothWays) {
  FakeHost fake;
  EXPECT_EQ(json_of(fake.post("/tokenize", R"({"prompt":"AB"})"))["tokens"], (Json{65, 66}));
  EXPECT_EQ(json_of(fake.post("/detokenize", R"({"tokens":[65,66]})"))["prompt"], "AB");
  EXPECT_EQ(fake.post("/detokenize", R"({"tokens":[256]})").status, 400);
}

TEST(Api, ServesThePageAndTheFigures) {
  FakeHost fake;
  EXPECT_THAT(fake.get("/").body, HasSubstr("<title>kvant</title>"));
  EXPECT_EQ(fake.get("/main.js").content_type, "text/javascript; charset=utf-8");
  EXPECT_EQ(json_of(fake.get("/props"))["kv"]["parts"]["edges"], "16,32");
  fake.post("/v1/completions", "{");
  EXPECT_THAT(fake.get("/metrics").body,
              HasSubstr("kvant_responses_total{endpoint=\"/v1/completions\",status=\"400\"} 1"));
}

/// Changes a few bytes of a request, or splices two.
std::string mutate(const std::vector<std::string>& seeds, std::mt19937& random) {
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % std::max<size_t>(1, limit)); };
  std::string text = seeds[below(seeds.size())];
  for (size_t i = 0, count = 1 + below(4); i < count; ++i) {
    const size_t at = below(text.size());
    switch (below(6)) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, 1 + below(8)); break;
      case 2: text.insert(at, text.substr(below(text.size()), below(30))); break;
      case 3: text.insert(at, "[{\"\\ud800\":-1e99,null,true,18446744073709551616]}"); break;
      case 4: text[at] = "{}[]\",:0-e"[below(10)]; break;
      default: {
        const std::string& other = seeds[below(seeds.size())];
        text = text.substr(0, at) + other.substr(below(other.size()));
      }
    }
    if (text.empty()) text = "{";
  }
  return text;
}

TEST(Api, AnswersWhateverItIsSent) {
  FakeHost fake;
  const std::vector<std::string> seeds{
      R"({"prompt":"ab","max_tokens":3,"stop":["x","y"],"logit_bias":{"65":1.5},"logprobs":2,"echo":false,"n":2})",
      R"({"prompt":[[65,66],[67]],"stream":true,"stream_options":{"include_usage":true},"temperature":1e0})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"\u00e9"}]},{"role":"tool","content":null}],
          "response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object"}}},"top_logprobs":1,
          "logprobs":true})",
      R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"a\":1}"}}]}],
          "tools":[{"type":"function","function":{"name":"f","parameters":{"$defs":{"x":{}}}}}],"tool_choice":"required"})"};
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::string body = mutate(seeds, random);
    const char* path = (std::array{"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"})[i % 4];
    const HttpResponse response = fake.post(path, body);
    ASSERT_TRUE(response.status == 200 || response.status == 400) << response.status << " " << path << " " << body;
    const std::string text = FakeHost::body_of(response);
    if (response.content_type != "application/json") continue;
    ASSERT_FALSE(Json::parse(text, nullptr, false).is_discarded()) << body;
  }
  EXPECT_EQ(fake.host().requests(), 0);
}

}  // namespace
}  // namespace kvant::server
