#pragma once
// Lines of instruction data as pieces of text, some of which are answers: what a model is trained
// to write. The rest is only read.

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace reynard::data {

struct DialoguePiece {
  std::string text;
  bool answer = false;  // the text, and the end of the text behind it, counts in the loss
};

// {"prompt", "response"}: the prompt and a newline, then the answer. {"messages": [{"role",
// "content"}]}: the chat template "longllama" (generation/chat_template.cpp), where what the
// assistant says are answers; what follows the last of them is left out. Throws reynard::Error
// saying what of the line is wrong, in particular for an answer without text.
std::vector<DialoguePiece> dialogue_pieces(const nlohmann::json& line);

}  // namespace reynard::data
