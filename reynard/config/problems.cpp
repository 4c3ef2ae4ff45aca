#include "reynard/config/fields.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace reynard::config {

std::string key(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

void Problems::add(std::string_view where, std::string_view path, std::string_view message) {
  if (path.empty()) {
    lines_.push_back(where.empty() ? std::string(message) : fmt::format("{}: {}", where, message));
    return;
  }
  // An override names its key itself: "--model.num_heads = 0; must be > 0".
  const bool names_key = where.starts_with("--");
  lines_.push_back(names_key       ? fmt::format("{} {}", where, message)
                   : where.empty() ? fmt::format("{} {}", path, message)
                                   : fmt::format("{}: {} {}", where, path, message));
}

void Problems::add(std::string_view path, std::string_view message) {
  const auto seen =
      std::find_if(seen_.rbegin(), seen_.rend(), [&](const Seen& s) { return s.path == path; });
  if (seen == seen_.rend()) {
    add(source_, {}, path.empty() ? std::string(message) : fmt::format("{}: {}", path, message));
  } else if (seen->where.empty()) {
    add(source_, path, fmt::format("= {} (default); {}", seen->value, message));
  } else {
    add(seen->where, path, fmt::format("= {}; {}", seen->value, message));
  }
}

void Problems::throw_if_any() const {
  if (!lines_.empty()) throw Error(fmt::format("{}", fmt::join(lines_, "\n")));
}

void Problems::set_value(std::string path, std::string where, std::string value) {
  seen_.push_back({std::move(path), std::move(where), std::move(value)});
}

}  // namespace reynard::config
