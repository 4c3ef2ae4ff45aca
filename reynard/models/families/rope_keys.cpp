#include "reynard/models/families/rope_keys.h"

#include "reynard/config/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>

namespace reynard::models {

namespace {

using ops::RotaryScaling;
using ops::RotaryScalingType;

// Written where the layout wants a number; reynard itself has no limit on positions.
constexpr int64_t kPositions = 131072;

RotaryScalingType read_type(const JsonFields& rope) {
  const JsonFields type = rope.of("attention.rope_scaling.type");
  const std::string text = type.text("rope_type", type.text("type", "default"));
  if (text == "default") return RotaryScalingType::kNone;
  const auto named = config::value_named<RotaryScalingType>(text);
  if (!named || *named == RotaryScalingType::kNone) {
    type.reject("rope_type", "default, linear, dynamic, yarn or llama3");
  }
  return *named;
}

// 0.1 m ln s + 1, by which YaRN multiplies cosines and sines.
double yarn_scale(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

double read_attention_factor(const JsonFields& rope, double factor) {
  const double m = rope.number("mscale", 0), m_all = rope.number("mscale_all_dim", 0);
  const double inferred = m != 0 && m_all != 0 ? yarn_scale(factor, m) / yarn_scale(factor, m_all)
                                               : yarn_scale(factor, 1);
  const double given =
      rope.of("attention.rope_scaling.attention_factor").number("attention_factor", inferred);
  if (given == 0) rope.reject("attention_factor", "a number above 0");  // ours of 0: inferred
  return given;
}

constexpr const char* kPositionsKey = "max_position_embeddings";
constexpr const char* kPositionsBeforeKey = "original_max_position_embeddings";

// 0 where there is none.
int64_t read_length(const JsonFields& fields,
                    const char* key,
                    int64_t most = ops::kMaxOriginalLength) {
  const std::optional<int64_t> length = fields.optional_integer(key);
  if (length && (*length < 1 || *length > most)) fields.reject(key, fmt::format("1 to {}", most));
  return length.value_or(0);
}

int64_t read_positions(const JsonFields& fields) {
  const int64_t positions = read_length(fields, kPositionsKey);
  if (positions == 0) fields.reject(kPositionsKey, "the context of pre-training");
  return positions;
}

int64_t read_positions_before(const JsonFields& fields, const JsonFields& rope) {
  for (const JsonFields* place : {&fields, &rope}) {
    if (const int64_t length = read_length(*place, kPositionsBeforeKey)) return length;
  }
  return read_positions(fields);
}

// Of the two lengths, where the factor is not given.
std::optional<double> yarn_quotient(const JsonFields& fields, int64_t before) {
  const int64_t positions = read_length(fields, kPositionsKey, INT64_MAX);
  if (positions == 0) return {};
  return static_cast<double>(positions) / static_cast<double>(before);
}

RotaryScaling read_scaling(const JsonFields& fields, const JsonFields& rope) {
  RotaryScaling scaling{.type = read_type(rope)};
  if (!scaling) return scaling;
  const JsonFields factor = rope.of("attention.rope_scaling.factor");
  switch (scaling.type) {
    case RotaryScalingType::kDynamic:
      scaling.factor = factor.number("factor");
      scaling.original_length = read_positions(fields);
      break;
    case RotaryScalingType::kLlama3:
      scaling.factor = factor.number("factor");
      scaling.original_length = read_positions_before(fields, rope);
      scaling.low_freq_factor =
          rope.of("attention.rope_scaling.low_freq_factor").number("low_freq_factor");
      scaling.high_freq_factor =
          rope.of("attention.rope_scaling.high_freq_factor").number("high_freq_factor");
      break;
    case RotaryScalingType::kYarn:
      scaling.original_length = read_positions_before(fields, rope);
      scaling.factor = factor.number("factor", yarn_quotient(fields, scaling.original_length));
      scaling.beta_fast = rope.of("attention.rope_scaling.beta_fast").number("beta_fast", 32);
      scaling.beta_slow = rope.of("attention.rope_scaling.beta_slow").number("beta_slow", 1);
      // True is the default of an absent one alone: transformers takes null for false.
      scaling.truncate = rope.boolean("truncate", !rope.json().contains("truncate"));
      scaling.attention_factor = read_attention_factor(rope, scaling.factor);
      break;
    default:
      scaling.factor = factor.number("factor");
  }
  return scaling;
}

// As in transformers: rope_scaling, unless it is empty, replaces rope_parameters wholly.
std::optional<JsonFields> rope_object(const JsonFields& fields) {
  const std::optional<JsonFields> scaling = fields.object("rope_scaling");
  if (scaling && !scaling->json().empty()) return scaling;
  return fields.object("rope_parameters");
}

}  // namespace

void read_rope_keys(const JsonFields& fields, AttentionMixerConfig& config) {
  config.rope = true;
  config.rope_base = fields.of("attention.rope_base").number("rope_theta", 10000);
  fields.expect("partial_rotary_factor", 1.0);
  const std::optional<JsonFields> rope = rope_object(fields);
  if (!rope) return;
  rope->expect("partial_rotary_factor", 1.0);
  config.rope_base = rope->of("attention.rope_base").number("rope_theta", config.rope_base);
  config.rope_scaling = read_scaling(fields, *rope);
}

void write_rope_keys(const AttentionMixerConfig& config, nlohmann::ordered_json& json) {
  const RotaryScaling& scaling = config.rope_scaling;
  const bool is_yarn = scaling.type == RotaryScalingType::kYarn;
  // Readers warn where the factor is not the quotient of the two lengths.
  nlohmann::ordered_json& positions = json[kPositionsKey];
  if (positions.is_null()) {
    positions = is_yarn
                    ? std::llround(scaling.factor * static_cast<double>(scaling.original_length))
                    : kPositions;
  }
  json["rope_theta"] = config.rope_base;
  if (!scaling) return;
  nlohmann::ordered_json rope;
  rope["rope_type"] = config::name_of(scaling.type);
  rope["factor"] = scaling.factor;
  switch (scaling.type) {
    case RotaryScalingType::kDynamic:
      json[kPositionsKey] = scaling.original_length;
      break;
    case RotaryScalingType::kLlama3:
      rope[kPositionsBeforeKey] = scaling.original_length;
      rope["low_freq_factor"] = scaling.low_freq_factor;
      rope["high_freq_factor"] = scaling.high_freq_factor;
      break;
    case RotaryScalingType::kYarn:
      rope[kPositionsBeforeKey] = scaling.original_length;
      rope["attention_factor"] =
          scaling.attention_factor > 0 ? scaling.attention_factor : yarn_scale(scaling.factor, 1);
      rope["beta_fast"] = scaling.beta_fast;
      rope["beta_slow"] = scaling.beta_slow;
      rope["truncate"] = scaling.truncate;
      break;
    default:
      break;
  }
  json["rope_scaling"] = rope;
}

}  // namespace reynard::models
