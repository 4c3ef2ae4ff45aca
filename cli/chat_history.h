#pragma once
// A conversation in a file, a JSON list of {"role", "content"}: `reynard chat --history`.

#include "reynard/generation/chat_template.h"

#include <filesystem>
#include <string>
#include <vector>

namespace reynard::cli {

class ChatHistory {
 public:
  // file: one that may not be there yet; empty: nothing is kept. Throws reynard::Error, naming the
  // file, when it is something else or cannot be written.
  explicit ChatHistory(const std::string& file);

  // What the file held when it was opened.
  const std::vector<generation::ChatMessage>& messages() const { return messages_; }
  // Replaces what the file holds. Where another program wrote it since, its conversation stays, and
  // ours is kept, now and from then on, beside it: talk.json, talk-1.json, the first free number.
  void write(const std::vector<generation::ChatMessage>& messages);
  // For a new conversation: what the file holds gets the first free number.
  void put_aside();

 private:
  std::string text() const;  // of the file; empty: there is none
  std::filesystem::path free_name() const;

  std::filesystem::path file_;
  std::string known_;  // the file's text as we read or wrote it
  std::vector<generation::ChatMessage> messages_;
};

}  // namespace reynard::cli
