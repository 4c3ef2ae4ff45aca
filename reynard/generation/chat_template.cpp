#include "reynard/generation/chat_template.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <array>

namespace reynard::generation {

namespace {

struct Named {
  std::string_view name;
  ChatTemplate::Kind kind;
  std::string_view mark;  // only templates of this family write it
};

constexpr std::array kTemplates = {
    Named{"chatml", ChatTemplate::Kind::kChatMl, "<|im_start|>"},
    Named{"llama3", ChatTemplate::Kind::kLlama3, "<|start_header_id|>"},
    Named{"llama2", ChatTemplate::Kind::kLlama2, "[INST]"},
};

std::string trimmed(const std::string& text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string render_chatml(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
  }
  return text + "<|im_start|>assistant\n";
}

std::string render_llama3(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>",
                        message.role,
                        trimmed(message.content));
  }
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

// Turns alternate, and the system's message is part of the first turn of the user.
std::string render_llama2(std::span<const ChatMessage> messages) {
  std::string text, system;
  bool user_is_next = true;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      if (&message != messages.data())
        throw Error("chat: llama2: only the first message may be system");
      system = fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n", message.content);
      continue;
    }
    if ((message.role == "user") != user_is_next) {
      throw Error("chat: llama2: roles must alternate user, assistant, user, ...");
    }
    text += user_is_next ? fmt::format("[INST] {}{} [/INST]", system, trimmed(message.content))
                         : fmt::format(" {} </s><s>", trimmed(message.content));
    if (user_is_next) system.clear();
    user_is_next = !user_is_next;
  }
  if (user_is_next) throw Error("chat: llama2: the last message must be the user's");
  return text;
}

}  // namespace

ChatTemplate ChatTemplate::named(std::string_view name) {
  std::string names;
  for (const Named& known : kTemplates) {
    if (known.name == name) return ChatTemplate(known.kind);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  throw Error(fmt::format("there is no chat template \"{}\"; there is: {}", name, names));
}

ChatTemplate ChatTemplate::recognised(std::string_view text, std::string_view file) {
  for (const Named& known : kTemplates) {
    if (text.find(known.mark) != std::string_view::npos) return ChatTemplate(known.kind);
  }
  throw Error(
      fmt::format("{}: the chat template is none of ChatML, Llama 3 and Llama 2: it writes "
                  "neither <|im_start|> nor <|start_header_id|> nor [INST]; name one with "
                  "--chat-template",
                  file));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages) const {
  if (messages.empty()) throw Error("chat: there is no message");
  for (const ChatMessage& message : messages) {
    const bool known =
        message.role == "system" || message.role == "user" || message.role == "assistant";
    if (!known) {
      throw Error(fmt::format("chat: role \"{}\"; expected system, user or assistant",
                              message.role.substr(0, 40)));
    }
  }
  switch (kind_) {
    case Kind::kChatMl:
      return render_chatml(messages);
    case Kind::kLlama3:
      return render_llama3(messages);
    case Kind::kLlama2:
      return render_llama2(messages);
  }
  return "";
}

std::string ChatTemplate::turn_end() const {
  switch (kind_) {
    case Kind::kChatMl:
      return "<|im_end|>";
    case Kind::kLlama3:
      return "<|eot_id|>";
    case Kind::kLlama2:
      return "</s>";
  }
  return "";
}

std::string_view ChatTemplate::name() const {
  for (const Named& known : kTemplates) {
    if (known.kind == kind_) return known.name;
  }
  return "";
}

}  // namespace reynard::generation
