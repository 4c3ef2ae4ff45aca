#include "reynard/tokenizer/pcre2_program.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace reynard::tokenizer {

namespace {

constexpr std::size_t kJitStackBytes = 16 << 20;
constexpr uint32_t kMatchLimit = 50'000'000;  // steps; beyond, a pattern is not worth waiting for

}  // namespace

struct Pcre2Program::Code {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> compiled{nullptr, pcre2_code_free};
};

Pcre2Program::Pcre2Program(std::string_view pattern) : code_(std::make_unique<Code>()) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  code_->compiled.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                    pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                    &code,
                    &offset,
                    nullptr));
  if (!code_->compiled) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code, message, sizeof message);
    throw Error(reinterpret_cast<const char*>(message));
  }
  // Where there is no just-in-time compiler, matching works without, only slower.
  pcre2_jit_compile(code_->compiled.get(), PCRE2_JIT_COMPLETE);
}

Pcre2Program::~Pcre2Program() = default;
Pcre2Program::Pcre2Program(Pcre2Program&&) noexcept = default;
Pcre2Program& Pcre2Program::operator=(Pcre2Program&&) noexcept = default;

bool Pcre2Program::for_each_match(
    std::string_view text,
    const std::function<void(std::size_t begin, std::size_t end)>& found) const {
  const pcre2_code* code = code_->compiled.get();
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack(
      pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr), pcre2_jit_stack_free);
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  pcre2_set_match_limit(context.get(), kMatchLimit);
  std::size_t at = 0;
  std::size_t last_end = std::string_view::npos;
  while (at <= text.size()) {
    const int count = pcre2_match(code,
                                  reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(),
                                  at,
                                  PCRE2_NO_UTF_CHECK,
                                  data.get(),
                                  context.get());
    if (count == PCRE2_ERROR_NOMATCH) return true;
    if (count < 0) return false;
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = offsets[0];
    const std::size_t end = offsets[1];
    if (end > begin || begin != last_end) {
      found(begin, end);
      last_end = end;
    }
    at = end;
    if (end <= begin) {
      at += at < text.size() ? static_cast<std::size_t>(code_point_at(text, at).length) : 1;
    }
  }
  return true;
}

}  // namespace reynard::tokenizer
