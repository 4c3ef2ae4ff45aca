#pragma once
// Token files of random documents for the tiny model.

#include "reynard/data/token_file_writer.h"

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

namespace reynard::training {

using Document = std::vector<int32_t>;

// Documents with texts of these lengths; vocabulary 17, BOS 15, EOS 16.
inline std::vector<Document> random_documents(const std::vector<int64_t>& lengths, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Document> documents;
  for (const int64_t length : lengths) {
    Document& document = documents.emplace_back(static_cast<size_t>(length));
    for (int32_t& id : document) id = static_cast<int32_t>(random() % 15);
  }
  return documents;
}

// Returns the path.
inline std::string write_text(const std::filesystem::path& path,
                              const std::vector<Document>& documents) {
  data::TokenFileWriter writer(path, {.vocab_size = 17, .bos = 15, .eos = 16});
  for (const Document& document : documents) {
    writer.begin_document();
    writer.append(document);
    writer.end_document(static_cast<int64_t>(document.size()));
  }
  writer.finish();
  writer.commit();
  return path.string();
}

}  // namespace reynard::training
