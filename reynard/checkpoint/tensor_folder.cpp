#include "reynard/checkpoint/safetensors.h"
#include "reynard/checkpoint/safetensors_header.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace reynard::checkpoint {

namespace {

// weight_map of an index file: tensor name -> shard file name.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const std::string text = config::read_text_file(path, kMaxHeaderBytes);
  const auto json = config::parse_json_text(text);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw Error(fmt::format("{}: is not JSON with an object \"weight_map\"", path.string()));
  }
  if (const auto twice = config::repeated_key(text)) {
    throw Error(fmt::format("{}: names {} twice", path.string(), json_quoted(*twice)));
  }
  std::map<std::string, std::string> map;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>())) {
      throw Error(fmt::format("{}: weight_map {}: expected the name of a file beside it",
                              path.string(),
                              json_quoted(name)));
    }
    map.emplace(name, shard.get<std::string>());
  }
  return map;
}

}  // namespace

TensorFolder::TensorFolder(const std::filesystem::path& folder, const std::string& stem)
    : folder_(folder) {
  const auto single = folder / (stem + ".safetensors");
  const auto index = folder / (stem + ".safetensors.index.json");
  if (std::filesystem::exists(single)) {
    files_.emplace_back(single);
    for (const TensorInfo& info : files_[0].tensors()) file_of_.emplace(info.name, 0);
    return;
  }
  if (!std::filesystem::exists(index)) {
    throw Error(fmt::format("{}: has neither {}.safetensors nor {}.safetensors.index.json",
                            folder.string(),
                            stem,
                            stem));
  }
  const std::map<std::string, std::string> map = read_index(index);
  std::map<std::string, std::size_t> opened;
  for (const auto& [name, shard] : map) {
    const auto [entry, is_first] = opened.emplace(shard, files_.size());
    if (is_first) files_.emplace_back(folder / shard);
    if (files_[entry->second].find(name) == nullptr) {
      throw Error(fmt::format("{}: weight_map puts tensor {} into {}, which does not have it",
                              index.string(),
                              json_quoted(name),
                              shard));
    }
    file_of_.emplace(name, entry->second);
  }
  for (std::size_t shard = 0; shard < files_.size(); ++shard) {
    for (const TensorInfo& info : files_[shard].tensors()) {
      const auto listed = file_of_.find(info.name);
      if (listed != file_of_.end() && listed->second == shard) continue;
      throw Error(fmt::format("{}: tensor {} is not there by the weight_map of {}",
                              files_[shard].path().string(),
                              json_quoted(info.name),
                              index.filename().string()));
    }
  }
}

std::vector<std::string> TensorFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const TensorInfo* TensorFolder::find(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : files_[found->second].find(name);
}

at::Tensor TensorFolder::read(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    throw Error(fmt::format("{}: has no tensor {}", folder_.string(), json_quoted(name)));
  }
  return files_[found->second].read(name);
}

at::Tensor TensorFolder::map(std::span<const std::string> names) const {
  if (names.empty()) return {};
  const auto found = file_of_.find(names[0]);
  return found == file_of_.end() ? at::Tensor() : files_[found->second].map(names);
}

void TensorFolder::let_go(std::span<const std::string> names) const {
  for (const std::string& name : names) {
    const auto found = file_of_.find(name);
    if (found != file_of_.end()) files_[found->second].let_go({&name, 1});
  }
}

std::filesystem::path TensorFolder::file_of(const std::string& name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? folder_ : files_[found->second].path();
}

}  // namespace reynard::checkpoint
