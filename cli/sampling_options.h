#pragma once
// The flags that say how tokens are chosen: of generate and chat.

#include "reynard/generation/sequence.h"

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace reynard::cli {

struct SamplingArguments {
  generation::SamplerOptions options;
  std::vector<std::string> logit_bias;  // "ID=VALUE"
  int64_t max_tokens = 256;
  int64_t lookup_tokens = 0;
  bool ignore_eos = false;

  // Throws reynard::Error for a bias that is not ID=VALUE and for values that no model allows.
  generation::SequenceOptions sequence_options() const;
  // Throws reynard::Error for a bias of a token that the model does not have.
  void check_tokens(int64_t vocab_size) const;
};
void add_options(CLI::App& command, SamplingArguments& arguments);

}  // namespace reynard::cli
