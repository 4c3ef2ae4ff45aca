#include "reynard/tokenizer/sentencepiece_model.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/decoder.h"
#include "reynard/tokenizer/tokenizer_json.h"
#include "reynard/tokenizer/utf8.h"
#include "reynard/tokenizer/wire_format.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string_view>
#include <unordered_set>

namespace reynard::tokenizer {

namespace {

// Numbers of the fields in sentencepiece_model.proto.
namespace field {
constexpr uint64_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
constexpr uint64_t kText = 1, kScore = 2, kType = 3;
constexpr uint64_t kModelType = 3, kSuffix = 24, kByteFallback = 35, kUnknownSurface = 44,
                   kBosPiece = 46, kEosPiece = 47;
constexpr uint64_t kCharacterMap = 2, kDummyPrefix = 3, kExtraWhitespaces = 4, kEscape = 5;
}  // namespace field

SentencePieceModel::Piece read_piece(std::string_view message, const std::string& where) {
  SentencePieceModel::Piece piece;
  WireReader reader(message, where);
  for (WireField field; reader.next(field);) {
    if (field.number == field::kText) piece.text = field.as_bytes(where);
    if (field.number == field::kScore) piece.score = field.as_float(where);
    if (field.number == field::kType) {
      const int64_t type = field.as_int(where);
      if (type < 1 || type > 6) throw Error(fmt::format("{}: has the type {}", where, type));
      piece.type = static_cast<SentencePieceModel::Type>(type);
    }
  }
  Utf8Validator validator;
  if (piece.text.empty() || !validator.feed(piece.text) || !validator.finish()) {
    throw Error(fmt::format("{}: has no text that is UTF-8", where));
  }
  if (!std::isfinite(piece.score)) throw Error(fmt::format("{}: has no finite score", where));
  if (piece.type == SentencePieceModel::Type::kUnused) {
    throw Error(fmt::format("{}: unused pieces are not supported", where));
  }
  return piece;
}

int64_t read_trainer(std::string_view message,
                     const std::string& where,
                     SentencePieceModel& model) {
  int64_t type = 1;  // unigram
  WireReader reader(message, where);
  for (WireField field; reader.next(field);) {
    if (field.number == field::kModelType) type = field.as_int(where);
    if (field.number == field::kByteFallback) model.byte_fallback = field.as_bool(where);
    if (field.number == field::kUnknownSurface) model.unknown_surface = field.as_bytes(where);
    if (field.number == field::kBosPiece) model.bos_piece = field.as_bytes(where);
    if (field.number == field::kEosPiece) model.eos_piece = field.as_bytes(where);
    if (field.number == field::kSuffix && field.as_bool(where)) {
      throw Error(fmt::format("{}: treat_whitespace_as_suffix is not supported", where));
    }
  }
  return type;
}

void read_normalizer_spec(std::string_view message,
                          const std::string& where,
                          SentencePieceModel& model) {
  WireReader reader(message, where);
  for (WireField field; reader.next(field);) {
    if (field.number == field::kCharacterMap) model.character_map = field.as_bytes(where);
    if (field.number == field::kDummyPrefix) model.add_dummy_prefix = field.as_bool(where);
    if (field.number == field::kEscape) model.escape_whitespaces = field.as_bool(where);
    if (field.number == field::kExtraWhitespaces) {
      model.remove_extra_whitespaces = field.as_bool(where);
    }
  }
}

void refuse_denormalizer(std::string_view message, const std::string& where) {
  WireReader reader(message, where);
  for (WireField field; reader.next(field);) {
    if (field.number == field::kCharacterMap && !field.as_bytes(where).empty()) {
      throw Error(fmt::format("{}: denormalizers are not supported", where));
    }
  }
}

void check_model(const SentencePieceModel& model, int64_t type, const std::string& where) {
  if (type != 2) {
    constexpr const char* names[] = {"", "unigram", "BPE", "word", "char"};
    throw Error(fmt::format("{}: a {} model is not supported; expected BPE",
                            where,
                            type >= 1 && type <= 4 ? names[type] : "new kind of"));
  }
  if (model.pieces.empty()) throw Error(fmt::format("{}: has no pieces", where));
  std::unordered_set<std::string_view> seen;
  int64_t num_unknown = 0;
  int64_t num_bytes = 0;
  for (const auto& piece : model.pieces) {
    if (!seen.insert(piece.text).second) {
      throw Error(fmt::format("{}: two pieces are {:?}", where, piece.text));
    }
    num_unknown += piece.type == SentencePieceModel::Type::kUnknown;
    if (piece.type != SentencePieceModel::Type::kByte) continue;
    ++num_bytes;
    if (byte_of_token(piece.text) < 0) {
      throw Error(fmt::format("{}: the byte piece {:?} is none", where, piece.text));
    }
  }
  if (num_unknown != 1) {
    throw Error(fmt::format("{}: has {} unknown pieces; expected 1", where, num_unknown));
  }
  if (model.byte_fallback && num_bytes != 256) {
    throw Error(fmt::format("{}: has {} byte pieces; expected 256", where, num_bytes));
  }
}

}  // namespace

SentencePieceModel read_sentencepiece_model(std::string_view contents, const std::string& where) {
  SentencePieceModel model;
  int64_t type = 1;
  WireReader reader(contents, where);
  for (WireField field; reader.next(field);) {
    if (field.number == field::kPieces) {
      if (static_cast<int64_t>(model.pieces.size()) >= kMaxVocabulary) {
        throw Error(fmt::format("{}: has too many pieces", where));
      }
      model.pieces.push_back(read_piece(field.as_bytes(where),
                                        fmt::format("{}: piece {}", where, model.pieces.size())));
    } else if (field.number == field::kTrainer) {
      type = read_trainer(field.as_bytes(where), where, model);
    } else if (field.number == field::kNormalizer) {
      read_normalizer_spec(field.as_bytes(where), where, model);
    } else if (field.number == field::kDenormalizer) {
      refuse_denormalizer(field.as_bytes(where), where);
    }
  }
  check_model(model, type, where);
  return model;
}

}  // namespace reynard::tokenizer
