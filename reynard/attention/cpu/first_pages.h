#pragma once
// Where each query of a decode call begins to read (docs/attention.md, pruning in decode).

#include "reynard/attention/cpu/decode_call.h"

#include <cstdint>
#include <vector>

namespace reynard::attention::cpu {

struct FirstPages {
  std::vector<int64_t> page;  // (S, H): the first that is held, where nothing else was found
  std::vector<bool> is_open;  // (S * G): still to be searched, by whoever attends

  explicit FirstPages(const DecodeCall& call);

  std::vector<int64_t>::iterator of(const DecodeCall& call, int64_t s, int64_t g) {
    return page.begin() + s * call.H + g * call.group;
  }
  void search(const DecodeCall& call, int64_t s, int64_t g, char* scratch);
};

}  // namespace reynard::attention::cpu
