#pragma once
// Reads SentencePiece model files (a Protocol Buffers message): pieces with their scores, and how
// text is normalized. Only BPE models are supported.

#include <string>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

struct SentencePieceModel {
  enum class Type { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;
  bool byte_fallback = false;
  std::string unknown_surface = " \xe2\x81\x87 ";
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  // Rules that replace characters, as SentencePiece compiles them; empty: none.
  std::string character_map;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// contents: of the file; where: its name in errors. Throws reynard::Error for a damaged file and
// for what is not supported.
SentencePieceModel read_sentencepiece_model(std::string_view contents, const std::string& where);

}  // namespace reynard::tokenizer
