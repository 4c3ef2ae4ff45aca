#pragma once
// A small byte model behind a real server on a free port of this machine, and what its answers say.

#include "reynard/models/decoder.h"
#include "reynard/serving/engine.h"
#include "reynard/serving/http_server.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {

inline models::Decoder byte_decoder() {
  models::DecoderConfig config = small_config();
  config.vocab_size = tokenizer::ByteTokenizer::kVocabSize;
  config.attention.key_shift = true;
  models::Decoder decoder(config, /*seed=*/3, test_device());
  spread_weights(decoder, 4);
  return decoder;
}

struct Served {
  models::Decoder decoder = byte_decoder();
  tokenizer::ByteTokenizer tokenizer;
  serving::Engine engine;
  serving::HttpServer server;

  explicit Served(const serving::EngineOptions& engine_options = {},
                  serving::HttpOptions http = {},
                  int64_t max_length = 4096,
                  const char* chat_template = "chatml")
      : engine(decoder, tokenizer, engine_options),
        server(engine, model(max_length, chat_template), with_free_port(std::move(http))) {}

  serving::ServedModel model(int64_t max_length, const char* chat_template = "chatml") const {
    return {.name = "small",
            .tokenizer = &tokenizer,
            .vocab_size = tokenizer::ByteTokenizer::kVocabSize,
            .max_length = max_length,
            .bos = tokenizer::ByteTokenizer::kBos,
            .stop = {tokenizer::ByteTokenizer::kEos},
            .chat = generation::ChatTemplate::named(chat_template)};
  }
  static serving::HttpOptions with_free_port(serving::HttpOptions http) {
    http.port = 0;
    return http;
  }
  httplib::Client client() const {
    httplib::Client made("127.0.0.1", static_cast<int>(server.port()));
    made.set_read_timeout(60);
    return made;
  }
  struct Response {
    int status = 0;
    nlohmann::json json;
    httplib::Headers headers;
  };
  Response post(const std::string& path,
                const std::string& body,
                const httplib::Headers& headers = {}) const {
    httplib::Client made = client();
    const auto result = made.Post(path, headers, body, "application/json");
    if (!result) return {};
    return {result->status,
            nlohmann::json::parse(result->body, nullptr, /*allow_exceptions=*/false),
            result->headers};
  }
  Response complete(const nlohmann::json& request) const {
    return post("/v1/completions", request.dump());
  }
};

// The events of a stream, [DONE] left out.
inline std::vector<nlohmann::json> events_of(const std::string& body) {
  std::vector<nlohmann::json> events;
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t end = body.find("\n\n", begin);
    const std::string event = body.substr(begin, end - begin);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    begin = end + 2;
    if (event == "data: [DONE]") {
      EXPECT_EQ(begin, body.size());
    } else {
      events.push_back(nlohmann::json::parse(event.substr(6)));
    }
  }
  return events;
}

// An answer with the API's error object.
inline void expect_error(const Served::Response& response, int status, const std::string& part) {
  EXPECT_EQ(response.status, status) << part;
  ASSERT_TRUE(response.json.is_object() && response.json.contains("error")) << part;
  EXPECT_NE(response.json["error"]["message"].get<std::string>().find(part), std::string::npos)
      << response.json;
}

}  // namespace reynard::test
