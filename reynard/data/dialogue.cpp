#include "reynard/data/dialogue.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace reynard::data {

namespace {

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto member = object.find(key);
  if (member == object.end() || !member->is_string()) {
    throw Error(fmt::format("has no text \"{}\"", key));
  }
  return member->get<std::string>();
}

std::string answer_of(const nlohmann::json& object, const char* key) {
  std::string text = text_of(object, key);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw Error(fmt::format(
        "the answer \"{}\" is empty, which nothing can be learned from; leave the line out", key));
  }
  return text;
}

std::vector<DialoguePiece> message_pieces(const nlohmann::json& messages) {
  if (!messages.is_array()) throw Error("\"messages\" is not a list");
  std::vector<DialoguePiece> pieces;
  std::string read;  // since the last answer
  for (const nlohmann::json& message : messages) {
    if (!message.is_object())
      throw Error("a message is not an object with \"role\" and \"content\"");
    const std::string role = text_of(message, "role");
    if (role == "system") {
      read += text_of(message, "content") + "\n\n";
    } else if (role == "user") {
      read += "\nUSER: " + text_of(message, "content");
    } else if (role == "assistant") {
      pieces.push_back({read + "\nASSISTANT: ", false});
      pieces.push_back({answer_of(message, "content"), true});
      read.clear();
    } else {
      throw Error(fmt::format("a message has the role {:?}; expected system, user or assistant",
                              role.substr(0, 40)));
    }
  }
  if (pieces.empty()) throw Error("no message has the role \"assistant\": nothing to learn");
  return pieces;
}

}  // namespace

std::vector<DialoguePiece> dialogue_pieces(const nlohmann::json& line) {
  if (!line.is_object()) throw Error("is not a JSON object");
  if (const auto messages = line.find("messages"); messages != line.end()) {
    return message_pieces(*messages);
  }
  if (!line.contains("prompt") || !line.contains("response")) {
    throw Error("has neither \"messages\" nor \"prompt\" with \"response\"");
  }
  return {{text_of(line, "prompt") + "\n", false}, {answer_of(line, "response"), true}};
}

}  // namespace reynard::data
