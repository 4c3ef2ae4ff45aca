#include "reynard/attention/cpu/decode_call.h"

#include "reynard/attention/cpu/path.h"
#include "reynard/tensor/row_tensor.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace reynard::attention::cpu {

namespace {

Element element_of_pages(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return Element::kBFloat16;
  return dtype == at::kHalf ? Element::kHalf : Element::kFloat;
}

// (S, H, D) in f32.
at::Tensor wide(const at::Tensor& q) {
  at::Tensor result = tensor::empty_rows(q.sizes(), at::kFloat);
  auto* to = result.mutable_data_ptr<float>();
  const auto widen = [&](const auto* from) {
    for (int64_t i = 0; i < q.numel(); ++i) to[i] = static_cast<float>(from[i]);
  };
  switch (q.scalar_type()) {
    case at::kBFloat16:
      widen(q.const_data_ptr<at::BFloat16>());
      break;
    case at::kHalf:
      widen(q.const_data_ptr<at::Half>());
      break;
    default:
      widen(q.const_data_ptr<float>());
  }
  return result;
}

// How many of a sequence's pages are gone from the front. Before its first key they need not be.
int64_t num_evicted(const HostSequence& sequence, const int32_t* pages) {
  const int64_t end = pages_for(sequence.length);
  const int64_t begin = std::clamp<int64_t>(sequence.first_key / kPageTokens, 0, end);
  return std::partition_point(pages + begin, pages + end, [](int32_t page) { return page < 0; }) -
         pages;
}

// The sequences of tensors.
std::vector<HostSequence> sequences_of(const DecodeArguments& a) {
  const int64_t S = a.page_table.size(0), G = a.page_table.size(1), H = a.q.size(1);
  const auto row = []<class Value>(const at::Tensor& t, int64_t place, const Value*& to) {
    to = t.defined() ? t.const_data_ptr<Value>() + place : nullptr;
  };
  const auto* table = a.page_table.const_data_ptr<int32_t>();
  std::vector<HostSequence> sequences(S);
  for (int64_t s = 0; s < S; ++s) {
    HostSequence& sequence = sequences[s];
    sequence.length = a.lengths.const_data_ptr<int64_t>()[s];
    if (a.first_key.defined()) sequence.first_key = a.first_key.const_data_ptr<int32_t>()[s];
    row(a.evicted_masses, s * H, sequence.evicted_masses);
    row(a.evicted_norms, s * G, sequence.evicted_norms);
    for (int64_t g = 0; g < G; ++g) {
      sequence.pages.push_back(std::exchange(table, table + a.page_table.size(2)));
      sequence.num_evicted.push_back(num_evicted(sequence, sequence.pages.back()));
    }
  }
  return sequences;
}

}  // namespace

DecodeCall::DecodeCall(const DecodeArguments& arguments)
    : a(arguments),
      S(a.q.size(0)),
      H(a.q.size(1)),
      D(a.q.size(2)),
      of_tensors(a.sequences.empty() ? sequences_of(a) : std::vector<HostSequence>()),
      sequences(a.sequences.empty() ? of_tensors : a.sequences),
      G(std::ssize(sequences[0].pages)),
      group(H / G),
      wide_q(wide(a.q)),
      query_sums(S * H),
      sums(data<double>(a.sums)),
      masses(data<double>(a.masses)),
      norms(data<float>(a.norms)),
      logit_bound(data<float>(a.logit_bound)),
      kernels(current_path().kernels(element_of_pages(a.keys.scalar_type()))) {
  for (int64_t s = 0; sums && s < S; ++s) {
    const int64_t last = length(s) - 1;
    for (int64_t h = 0; last >= 0 && h < H; ++h) {
      const int32_t page = pages(s, h / group)[last / kPageTokens];
      query_sums[s * H + h] = page_sums(page, h)[last % kPageTokens];
    }
  }
}

PageRun DecodeCall::run(int64_t s, int64_t g, int64_t begin, int64_t end) const {
  PageRun run;
  run.keys = a.keys.const_data_ptr();
  run.as_rows = are_rows(a.keys);
  run.element = element_of_pages(a.keys.scalar_type());
  run.scales = a.scales.defined() ? a.scales.const_data_ptr<float>() : nullptr;
  run.D = D;
  run.group = group;
  run.sums = sums;
  run.pages = pages(s, g) + begin;
  run.num_pages = end - begin;
  run.q = query(s, g * group);
  run.scale = a.options.scale;
  run.query_sums = query_sums.data() + s * H + g * group;
  return run;
}

}  // namespace reynard::attention::cpu
