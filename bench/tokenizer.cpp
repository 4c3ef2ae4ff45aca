#include "bench/tokenizer.h"

#include "bench/peer_process.h"
#include "reynard/statistics/median.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

namespace reynard::bench {

namespace {

// The text up to the last line that ends within max_bytes.
std::string read_text(const std::string& file, int64_t max_bytes) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw Error(fmt::format("bench tokenizer: {} cannot be read", file));
  std::string text(static_cast<std::size_t>(max_bytes), '\0');
  stream.read(text.data(), max_bytes);
  text.resize(static_cast<std::size_t>(stream.gcount()));
  const std::size_t end = text.rfind('\n');
  if (stream.gcount() == max_bytes && end != std::string::npos) text.resize(end + 1);
  if (text.empty()) throw Error(fmt::format("bench tokenizer: {} is empty", file));
  return text;
}

// Of this thread: what others do on the machine does not count.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Row measure(const TokenizerBench& options, const std::string& file, const std::string& text) {
  const auto tokenizer = tokenizer::make_tokenizer(file);
  PeerProcess peer("tokenizer_peer.py", {file, options.text, std::to_string(text.size())});
  const std::vector<int32_t> ids = tokenizer->encode(text);
  const nlohmann::json answer = nlohmann::json::parse(peer.ask("ids"), nullptr, false);
  if (!answer.is_object() || !answer["ids"].is_array()) {
    throw Error("bench tokenizer: the peer gave no ids");
  }
  if (answer["ids"] != nlohmann::json(ids)) {
    throw Error(fmt::format("bench tokenizer: {}: the ids are not those of the package {}",
                            file,
                            answer.value("package", "")));
  }
  std::vector<double> ours, peers;
  for (int i = 0; i < options.repeats; ++i) {
    const double begin = cpu_seconds();
    tokenizer->encode(text);
    ours.push_back(cpu_seconds() - begin);
    peers.push_back(peer.ask_number("time"));
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  return {.name = "tokenizer_encode",
          .shape = std::filesystem::path(file).filename().string(),
          .dtype = "text",
          .device = device_name(at::kCPU),
          .ours = megabytes / statistics::median(ours),
          .peer = answer.value("package", ""),
          .peer_value = megabytes / statistics::median(peers),
          .unit = "MB/s of CPU",
          .ratio = statistics::median(peers) / statistics::median(ours)};
}

}  // namespace

Rows bench_tokenizer(const TokenizerBench& options) {
  const std::string text = read_text(options.text, options.max_bytes);
  Rows rows;
  for (const std::string& file : options.tokenizers) rows.push_back(measure(options, file, text));
  return rows;
}

}  // namespace reynard::bench
