#include "reynard/generation/chat_template.h"

#include "reynard/jinja/template.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/added_tokens.h"
#include "reynard/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace reynard::generation {

namespace {

struct Named {
  std::string_view name;
  std::string_view source;
};

// The families as their first models define them, for folders that hold no template.
constexpr std::array kTemplates = {
    Named{"chatml",
          R"({% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %})"},
    Named{"llama2",
          R"({% set turns = messages %}
{% set system = '' %}
{% if messages[0].role == 'system' %}
{% set turns = messages[1:] %}
{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}
{% endif %}
{% for message in turns %}
{% if message.role != ('assistant' if loop.index0 is odd else 'user') %}
{{ raise_exception('the roles must be user and assistant by turns, after at most one system') }}
{%- endif %}
{% if message.role == 'user' %}
{% set content = (system if loop.first else '') + message.content %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}
{{ ' ' + message.content.strip() + ' ' + eos_token }}
{%- endif %}
{% endfor %})"},
    Named{"llama3",
          R"({{ bos_token }}
{%- for message in messages %}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{{- message.content.strip() + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})"},
    // What `reynard prepare --dialogues` writes (data/dialogue.cpp), too.
    Named{"longllama",
          R"({{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}
{{- message.content + '\n\n' }}
{%- elif message.role == 'user' %}
{{- '\nUSER: ' + message.content }}
{%- else %}
{{- '\nASSISTANT: ' + message.content + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '\nASSISTANT: ' }}
{%- endif %})"},
};

std::string stripped(const std::string& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The names of BOS and EOS that the tokenizer itself takes for letters: SentencePiece finds its
// control pieces in no text.
tokenizer::TokenFinder unfound_tokens(const SpecialTexts& special,
                                      const tokenizer::Tokenizer& tokenizer) {
  tokenizer::TokenFinder finder;
  const auto add = [&](const std::string& text, std::optional<int64_t> id) {
    if (text.empty() || !id) return;
    const std::array<int64_t, 1> one = {*id};
    const bool is_its_name = tokenizer.decode(one, {.keep_special = true}) == text;
    if (is_its_name && !std::ranges::equal(tokenizer.encode(text), one)) {
      finder.add(text, {.content = text, .id = static_cast<int32_t>(*id)});
    }
  };
  add(special.bos, tokenizer.bos());
  add(special.eos, tokenizer.eos());
  return finder;
}

// The text between the names is encoded by itself, as Transformers does (LlamaTokenizer).
std::vector<int64_t> encode_with_names(const tokenizer::Tokenizer& tokenizer,
                                       const tokenizer::TokenFinder& names,
                                       std::string_view text) {
  std::vector<int64_t> tokens;
  names.split(text, [&](std::string_view part, int32_t id) {
    const bool behind_token = part.data() != text.data();
    const std::vector<int32_t> ids =
        id >= 0 ? std::vector{id} : tokenizer.encode(part, {.behind_token = behind_token});
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  });
  return tokens;
}

}  // namespace

bool is_chat_role(std::string_view role) {
  return role == "system" || role == "user" || role == "assistant";
}

ChatTemplate::ChatTemplate(std::string_view source,
                           std::string_view name,
                           const SpecialTexts& special)
    : template_(std::make_shared<jinja::Template>(source)),
      special_(special),
      name_(name),
      turn_end_(find_turn_end()) {}

ChatTemplate ChatTemplate::named(std::string_view name, const SpecialTexts& special) {
  std::string names;
  for (const Named& known : kTemplates) {
    if (known.name == name) return ChatTemplate(known.source, name, special);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  throw Error(fmt::format("chat template \"{}\": is no file and none of {}", name, names));
}

ChatTemplate ChatTemplate::published(std::string_view source,
                                     std::string_view file,
                                     const SpecialTexts& special) {
  try {
    return {source, file, special};
  } catch (const Error& error) {
    throw Error(fmt::format(
        "{}: the chat template: {}; name another with --chat-template", file, error.what()));
  }
}

std::string ChatTemplate::run(std::span<const ChatMessage> messages, bool answer_begins) const {
  jinja::Value::List list;
  for (const ChatMessage& message : messages) {
    list.emplace_back(jinja::Value::Map{{"role", message.role}, {"content", message.content}});
  }
  jinja::Value::Map variables;
  for (const auto& [name, text] : special_.others) variables.emplace_back(name, text);
  // Of equal names the last one counts.
  variables.insert(variables.end(),
                   {{"messages", std::move(list)},
                    {"add_generation_prompt", answer_begins},
                    {"bos_token", special_.bos},
                    {"eos_token", special_.eos},
                    {"tools", jinja::Value::None()},
                    {"documents", jinja::Value::None()}});
  return template_->render(variables);
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages) const {
  if (messages.empty()) throw Error("chat: there is no message");
  for (const ChatMessage& message : messages) {
    if (is_chat_role(message.role)) continue;
    throw Error(
        fmt::format("chat: role {:?}; expected {}", message.role.substr(0, 40), kChatRoles));
  }
  try {
    return run(messages, /*answer_begins=*/true);
  } catch (const Error& error) {
    throw Error(fmt::format("chat: the template refuses these messages: {}", error.what()));
  }
}

// What the template writes behind an answer.
std::string ChatTemplate::find_turn_end() const {
  constexpr std::string_view kAnswer = "the-answer";
  const std::array messages = {ChatMessage{"user", "the-question"},
                               ChatMessage{"assistant", std::string(kAnswer)}};
  try {
    const std::string text = run(messages, /*answer_begins=*/false);
    const std::size_t at = text.rfind(kAnswer);
    return at == std::string::npos ? "" : stripped(text.substr(at + kAnswer.size()));
  } catch (const Error&) {  // it wants other messages; the model's own end tokens are left
    return "";
  }
}

ChatPrompt chat_prompt(const ChatTemplate& chat,
                       const tokenizer::Tokenizer& tokenizer,
                       std::span<const ChatMessage> messages) {
  const tokenizer::TokenFinder names = unfound_tokens(chat.special(), tokenizer);
  ChatPrompt prompt;
  // The template has written the special tokens.
  prompt.tokens = encode_with_names(tokenizer, names, chat.render(messages));
  if (chat.turn_end().empty()) return prompt;
  const std::vector<int64_t> end = encode_with_names(tokenizer, names, chat.turn_end());
  const std::array<int64_t, 1> first = {end.empty() ? 0 : end[0]};
  const bool is_special = !end.empty() && tokenizer.decode(first).empty();
  if (is_special) {
    prompt.stop.push_back(first[0]);
  } else {
    prompt.stop_texts.push_back(chat.turn_end());
  }
  return prompt;
}

}  // namespace reynard::generation
