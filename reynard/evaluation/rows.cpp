#include "reynard/evaluation/rows.h"

#include "reynard/evaluation/python_random.h"
#include "reynard/evaluation/text_too_short.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <fmt/format.h>

#include <algorithm>

namespace reynard::evaluation {

std::vector<Row> cut_rows(const Corpus& corpus, const RowOptions& options, std::string_view task) {
  tensor::check_value(options.length >= 1, task, "length", options.length, ">= 1");
  std::vector<Document> documents = corpus.documents;
  if (options.across_documents) documents = {{0, corpus.num_tokens}};

  PythonRandom random(static_cast<uint64_t>(options.seed));
  std::vector<Row> all;
  int64_t longest = 0;
  for (size_t d = 0; d < documents.size(); ++d) {
    const int64_t size = documents[d].end - documents[d].begin;
    longest = std::max(longest, size);
    const int64_t count = size / options.length;
    if (count == 0) continue;
    const int64_t begin = documents[d].begin + random.up_to(size - count * options.length);
    for (int64_t i = 0; i < count; ++i) {
      all.push_back({static_cast<int64_t>(d), begin + i * options.length});
    }
  }
  if (all.empty()) {
    throw TextTooShort(fmt::format(
        "{0}: no document has {1}, the longest has {2}: give longer text, a smaller {3}{4}",
        task,
        counted(options.length, "token"),
        longest,
        task == "text_sample" ? "--text_sample.prompt or --text_sample.tokens"
                              : fmt::format("--length or --{}.length", task),
        task == "per_position_loss" && !options.across_documents
            ? ", or --per_position_loss.across_documents=true"
            : ""));
  }
  const auto found = static_cast<int64_t>(all.size());
  const int64_t wanted = std::min(options.rows, found);
  std::vector<Row> rows;
  for (int64_t i = 0; i < wanted; ++i) rows.push_back(all[i * found / wanted]);
  return rows;
}

}  // namespace reynard::evaluation
