#pragma once
// From messages to the prompt of a chat model. Templates are those that models publish (Jinja, run
// by jinja/template.h) or one of a few by name; what one uses and is not supported is named in the
// error.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::tokenizer {
class Tokenizer;
}

namespace reynard::jinja {
class Template;
}

namespace reynard::generation {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// What the role of a message can be, and whether it is one of these.
constexpr std::string_view kChatRoles = "system, user or assistant";
bool is_chat_role(std::string_view role);

// What templates write for special tokens.
struct SpecialTexts {
  std::string bos, eos;  // that begin and end a text; empty: none does
  // Others by their names in templates: ("unk_token", "<unk>").
  std::vector<std::pair<std::string, std::string>> others = {};
};

class ChatTemplate {
 public:
  // "chatml", "llama2", "llama3", "longllama". Throws reynard::Error, listing them, for any other.
  static ChatTemplate named(std::string_view name, const SpecialTexts& special = {});
  // The published template of `file`. Throws reynard::Error naming what is not supported.
  static ChatTemplate published(std::string_view source,
                                std::string_view file,
                                const SpecialTexts& special = {});

  // The prompt up to where the assistant's turn begins, special tokens included. Throws
  // reynard::Error for a role or an order that the template refuses.
  std::string render(std::span<const ChatMessage> messages) const;
  // What ends the assistant's turn, as text; empty: nothing does.
  const std::string& turn_end() const { return turn_end_; }
  // What it writes for special tokens.
  const SpecialTexts& special() const { return special_; }
  // The built-in name, or the file.
  const std::string& name() const { return name_; }

 private:
  ChatTemplate(std::string_view source, std::string_view name, const SpecialTexts& special);
  std::string run(std::span<const ChatMessage> messages, bool answer_begins) const;
  std::string find_turn_end() const;

  std::shared_ptr<const jinja::Template> template_;
  SpecialTexts special_;
  std::string name_, turn_end_;
};

// A conversation as a model reads it, and what ends its answer: an id, or a text where the
// tokenizer has no token for it.
struct ChatPrompt {
  std::vector<int64_t> tokens;
  std::vector<int64_t> stop;
  std::vector<std::string> stop_texts;
};
ChatPrompt chat_prompt(const ChatTemplate& chat,
                       const tokenizer::Tokenizer& tokenizer,
                       std::span<const ChatMessage> messages);

}  // namespace reynard::generation
