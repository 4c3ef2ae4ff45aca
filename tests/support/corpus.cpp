#include "tests/support/corpus.h"

#include <memory>
#include <utility>

namespace reynard::test {

evaluation::Corpus corpus_of(std::vector<int64_t> tokens,
                             const std::vector<int64_t>& document_ends) {
  evaluation::Corpus corpus;
  corpus.num_tokens = static_cast<int64_t>(tokens.size());
  int64_t begin = 0;
  for (const int64_t end : document_ends) {
    corpus.documents.push_back({begin, end});
    begin = end;
  }
  auto shared = std::make_shared<const std::vector<int64_t>>(std::move(tokens));
  corpus.read = [shared](int64_t begin, int64_t end) {
    return std::vector<int64_t>(shared->begin() + begin, shared->begin() + end);
  };
  corpus.vocab_size = 258;
  corpus.encode = [](std::string_view text) {
    std::vector<int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  corpus.decode = [](const std::vector<int64_t>& ids) {
    std::string text;
    for (const int64_t id : ids) {
      if (id >= 0 && id < 256) text += static_cast<char>(id);
    }
    return text;
  };
  return corpus;
}

}  // namespace reynard::test
