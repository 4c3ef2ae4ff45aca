#include "cli/end_tokens.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

namespace reynard::cli {

std::vector<int64_t> end_tokens(const std::filesystem::path& file, int64_t vocab_size) {
  constexpr uintmax_t kMaxBytes = 4 << 20;
  if (!std::filesystem::exists(file)) return {};
  const nlohmann::json json = config::read_json_object(file, kMaxBytes);
  const auto ids = json.find("eos_token_id");
  if (ids == json.end() || ids->is_null()) return {};
  std::vector<int64_t> tokens;
  for (const auto& id : ids->is_array() ? *ids : nlohmann::json::array({*ids})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      throw Error(fmt::format(
          "{}: eos_token_id = {}; must be a token of the vocabulary, 0 to {}, or a list of them",
          file.string(),
          ids->dump(),
          vocab_size - 1));
    }
    tokens.push_back(id.get<int64_t>());
  }
  return tokens;
}

void add_unique(std::vector<int64_t>& tokens, const std::vector<int64_t>& more) {
  for (const int64_t token : more) {
    if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
  }
}

}  // namespace reynard::cli
