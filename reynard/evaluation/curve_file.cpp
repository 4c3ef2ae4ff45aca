// Reading a forgetting curve from a file that this or the published program wrote.

#include "reynard/config/fields.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/evaluation/forgetting_curve.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

namespace reynard::evaluation {

namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMostCurveBytes = uintmax_t{64} << 20;  // a published file has some 20 kB

// One field of one entry, or an error that names it.
class Entry {
 public:
  Entry(const fs::path& path, size_t index, const nlohmann::json& json)
      : where_(fmt::format("forgetting-curve: {}: entry {}", path.string(), index)), json_(json) {
    if (!json.is_object()) throw Error(where_ + " is not an object");
  }

  int64_t length() const {
    const nlohmann::json& value = field("length");
    if (!value.is_number_integer() || value.get<int64_t>() < 1) fail("length", "an integer >= 1");
    return value.get<int64_t>();
  }

  std::vector<double> accuracies(const char* key) const {
    const nlohmann::json& list = field(key);
    if (!list.is_array() || list.empty()) fail(key, "a list of accuracies");
    std::vector<double> values;
    for (const nlohmann::json& value : list) {
      // Not (0 <= x): NaN.
      if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1)) {
        fail(key, "numbers from 0 to 1");
      }
      values.push_back(value.get<double>());
    }
    return values;
  }

  std::optional<double> number(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_number()) return {};
    return found->get<double>();
  }

  [[noreturn]] void fail(const char* key, const char* expected) const {
    throw Error(fmt::format("{}: \"{}\" must be {}", where_, key, expected));
  }

 private:
  const nlohmann::json& field(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw Error(fmt::format("{} has no \"{}\"", where_, key));
    return *found;
  }

  std::string where_;
  const nlohmann::json& json_;
};

CurvePoint point_of(const Entry& entry) {
  std::vector<double> lm = entry.accuracies("lm_accs");
  std::vector<double> copy = entry.accuracies("copy_accs");
  if (lm.size() != copy.size()) entry.fail("copy_accs", "as long as \"lm_accs\"");
  CurvePoint point = curve_point(entry.length(), std::move(lm), std::move(copy));
  point.lm_loss = entry.number("lm_loss");
  point.copy_loss = entry.number("copy_loss");
  return point;
}

}  // namespace

CurveFile read_curve_file(const fs::path& path) {
  const nlohmann::json json =
      config::parse_json_text(config::read_text_file(path, kMostCurveBytes));
  if (json.is_discarded()) {
    throw Error(fmt::format("forgetting-curve: {} is not JSON", path.string()));
  }
  CurveFile file;
  file.name = path.stem().string();
  const nlohmann::json* points = &json;
  const nlohmann::json::json_pointer series("/series/points");
  if (json.is_object() && json.contains(series)) {
    points = &json.at(series);
    if (json.contains("name") && json.at("name").is_string()) {
      file.name = config::printable(json.at("name").get<std::string>());
    }
    const auto trained = json.find("train_length");
    if (trained != json.end() && trained->is_number_integer()) file.train_length = *trained;
  }
  if (!points->is_array() || points->empty()) {
    throw Error(fmt::format(
        "forgetting-curve: {} is neither a published result (a JSON array with one object per "
        "length) nor a forgetting_curve.json of `reynard eval`",
        path.string()));
  }
  for (size_t i = 0; i < points->size(); ++i) {
    const Entry entry(path, i, points->at(i));
    CurvePoint point = point_of(entry);
    if (i > 0 && point.length <= file.points.back().length) {
      entry.fail("length", "larger than that of the entry before");
    }
    file.points.push_back(std::move(point));
  }
  compare_over_lengths(file.points);
  return file;
}

}  // namespace reynard::evaluation
