#pragma once
// Chat templates of the ChatML (Qwen and many others), Llama 3 and Llama 2 / Mistral families:
// recognised by the marks that their published templates write, and rendered by own code. Other
// templates are an error that names them.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace reynard::generation {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  enum class Kind { kChatMl, kLlama3, kLlama2 };

  explicit ChatTemplate(Kind kind) : kind_(kind) {}
  // By name: "chatml", "llama3", "llama2". Throws reynard::Error, listing them, for any other.
  static ChatTemplate named(std::string_view name);
  // By the published template's text, of `file`. Throws reynard::Error when it is none of these.
  static ChatTemplate recognised(std::string_view text, std::string_view file);

  // The prompt, without the token that begins a text, up to where the assistant's turn begins.
  // Throws reynard::Error for a role or an order that the template cannot express.
  std::string render(std::span<const ChatMessage> messages) const;
  // What ends the assistant's turn, as text.
  std::string turn_end() const;
  std::string_view name() const;

 private:
  Kind kind_;
};

}  // namespace reynard::generation
