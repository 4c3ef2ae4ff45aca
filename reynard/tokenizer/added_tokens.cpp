#include "reynard/tokenizer/added_tokens.h"

#include "reynard/tokenizer/unicode.h"

#include <algorithm>

namespace reynard::tokenizer {

namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(code_point_before(text, text.size()).value);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word(code_point_at(text, 0).value);
}

}  // namespace

void TokenFinder::add(const std::string& text, const AddedToken& token) {
  if (text.empty()) return;
  uint32_t node = 0;
  for (const char c : text) {
    const uint32_t known = child_of(node, c);
    if (known != kNone) {
      node = known;
      continue;
    }
    const auto added = static_cast<uint32_t>(nodes_.size());
    nodes_.emplace_back();
    Node& parent = nodes_[node];
    const auto byte = static_cast<unsigned char>(c);
    if (parent.num_children++ == 0) {
      parent.child = added;
      parent.byte = byte;
    } else {
      more_children_.emplace(uint64_t{node} << 8 | byte, added);
    }
    node = added;
  }
  if (nodes_[node].token >= 0) return;  // the first of equals
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({text, token});
  first_bytes_[static_cast<unsigned char>(text[0])] = true;
}

uint32_t TokenFinder::child_of(uint32_t node, char byte) const {
  const Node& parent = nodes_[node];
  const auto wanted = static_cast<unsigned char>(byte);
  if (parent.num_children == 0) return kNone;
  if (parent.byte == wanted) return parent.child;
  if (parent.num_children == 1) return kNone;
  const auto found = more_children_.find(uint64_t{node} << 8 | wanted);
  return found == more_children_.end() ? kNone : found->second;
}

std::optional<TokenFinder::Found> TokenFinder::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) continue;
    uint32_t node = 0;
    int32_t token = -1;
    std::size_t end = begin;
    for (std::size_t i = begin; i < text.size(); ++i) {
      node = child_of(node, text[i]);
      if (node == kNone) break;
      if (nodes_[node].token >= 0) {
        token = nodes_[node].token;
        end = i + 1;
      }
    }
    if (token >= 0) return Found{begin, end, static_cast<std::size_t>(token)};
  }
  return std::nullopt;
}

void TokenFinder::split(std::string_view text,
                        const std::function<void(std::string_view part, int32_t id)>& part) const {
  std::size_t done = 0;
  std::optional<Found> found;
  for (std::size_t from = 0; !tokens_.empty() && (found = find(text, from)); from = found->end) {
    const AddedToken& token = tokens_[found->token].token;
    std::size_t begin = found->begin;
    std::size_t end = found->end;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    while (token.lstrip && begin > done) {
      const CodePoint c = code_point_before(text, begin);
      if (!is_space(c.value)) break;
      begin -= static_cast<std::size_t>(c.length);
    }
    // Of spaces that the token before took nothing is left.
    if (token.lstrip) begin = std::max(begin, done);
    while (token.rstrip && end < text.size()) {
      const CodePoint c = code_point_at(text, end);
      if (!is_space(c.value)) break;
      end += static_cast<std::size_t>(c.length);
    }
    if (begin > done) part(text.substr(done, begin - done), -1);
    if (begin < end) part(text.substr(begin, end - begin), token.id);
    done = end;
  }
  if (done < text.size()) part(text.substr(done), -1);
}

bool TokenFinder::keeps_word_ends(std::string_view space) const {
  return std::none_of(tokens_.begin(), tokens_.end(), [&](const Entry& entry) {
    const std::string_view text = entry.text;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text.substr(i).starts_with(space) && is_ascii_letter(text[i - 1])) return true;
    }
    return (entry.token.rstrip && is_ascii_letter(text.back())) ||
           (entry.token.single_word && text.starts_with(space));
  });
}

bool TokenFinder::keeps_newlines() const {
  return std::none_of(tokens_.begin(), tokens_.end(), [](const Entry& entry) {
    return entry.token.lstrip || entry.token.rstrip || entry.token.single_word ||
           entry.text.find('\n') != std::string::npos;
  });
}

}  // namespace reynard::tokenizer
