#include "cli/chat_history.h"

#include "cli/message.h"
#include "cli/output_file.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace reynard::cli {

namespace {

using generation::ChatMessage;

constexpr uintmax_t kMaxHistoryBytes = uintmax_t{256} << 20U;

std::vector<ChatMessage> parse_messages(const std::string& text, const std::string& file) {
  const auto json = config::parse_json_text(text);
  const auto is_text = [](const nlohmann::json& message, const char* key) {
    return message.is_object() && message.contains(key) && message[key].is_string();
  };
  const bool is_list = json.is_array() && std::ranges::all_of(json, [&](const auto& message) {
                         return is_text(message, "role") && is_text(message, "content");
                       });
  if (!is_list) {
    throw Error(
        fmt::format("chat: --history {}: is no JSON list of {{\"role\", \"content\"}}", file));
  }
  std::vector<ChatMessage> messages;
  for (const auto& message : json) {
    messages.push_back({message["role"].template get<std::string>(),
                        message["content"].template get<std::string>()});
    const std::string& role = messages.back().role;
    if (generation::is_chat_role(role)) continue;
    throw Error(fmt::format("chat: --history {}: message {} has the role {:?}; expected {}",
                            file,
                            messages.size(),
                            role.substr(0, 40),
                            generation::kChatRoles));
  }
  return messages;
}

}  // namespace

ChatHistory::ChatHistory(const std::string& file) : file_(end_of_links(file)) {
  if (file.empty()) return;
  if (std::filesystem::exists(file_)) {
    if (!std::filesystem::is_regular_file(file_)) {
      throw Error(fmt::format("chat: --history {}: is no file", file));
    }
    known_ = text();
    messages_ = parse_messages(known_, file);
  }
  checkpoint::AtomicFile{file_};  // can be written
}

std::string ChatHistory::text() const {
  return std::filesystem::exists(file_) ? config::read_text_file(file_, kMaxHistoryBytes) : "";
}

std::filesystem::path ChatHistory::free_name() const {
  std::filesystem::path name;
  for (int number = 1; name.empty() || std::filesystem::exists(name); ++number) {
    name = file_;
    name.replace_filename(
        fmt::format("{}-{}{}", file_.stem().string(), number, file_.extension().string()));
  }
  return name;
}

void ChatHistory::write(const std::vector<ChatMessage>& messages) {
  if (file_.empty()) return;
  if (text() != known_) {
    const std::filesystem::path own = free_name();
    print_message("--history {}: another program has written it; this conversation is in {}\n",
                  file_.string(),
                  own.string());
    file_ = own;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    json.push_back({{"role", message.role}, {"content", tokenizer::displayable(message.content)}});
  }
  known_ = json.dump(1) + "\n";
  checkpoint::write_atomically(file_, known_);
}

void ChatHistory::put_aside() {
  if (!file_.empty() && std::filesystem::exists(file_) && text() == known_) {
    const std::filesystem::path kept = free_name();
    std::filesystem::rename(file_, kept);
    print_message("the conversation before is in {}\n", kept.string());
  }
  known_.clear();
}

}  // namespace reynard::cli
