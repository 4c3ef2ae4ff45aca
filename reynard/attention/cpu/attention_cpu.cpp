#include "reynard/attention/cpu/attention_cpu.h"

#include "reynard/attention/reference.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace reynard::attention::cpu {

namespace {

constexpr int64_t kQueryBlock = 128;

// The arguments of one block of queries: only keys up to the block's last visible one.
struct Block {
  int64_t begin, end;  // queries
  int64_t keys;        // keys [0, keys) are all that it may see
  at::Tensor q, query_sums, start;
  KeyPart part;
};

Block query_block(const PartArguments& arguments, int64_t begin) {
  const KeyPart& part = arguments.part;
  const int64_t Tq = arguments.q.size(1), Tk = part.k.size(1);
  Block block;
  block.begin = begin;
  block.end = std::min(begin + kQueryBlock, Tq);
  block.keys = part.causal ? Tk - Tq + block.end : Tk;
  block.q = arguments.q.slice(1, begin, block.end);
  block.part = part;
  block.part.k = part.k.slice(1, 0, block.keys);
  block.part.v = part.v.slice(1, 0, block.keys);
  if (part.sums.defined()) {
    block.query_sums = arguments.query_sums.slice(2, begin, block.end);
    block.part.sums = part.sums.slice(2, 0, block.keys);
  }
  if (part.first_key.defined()) block.part.first_key = part.first_key.slice(1, begin, block.end);
  if (arguments.start.defined()) {
    block.start = arguments.start.slice(2, begin / kQueryBlock, begin / kQueryBlock + 1);
  }
  return block;
}

}  // namespace

ForwardPart forward_part(const PartArguments& arguments, at::ScalarType out_dtype) {
  const at::Tensor& q = arguments.q;
  ForwardPart result;
  result.out = at::empty(q.sizes(), q.options().dtype(out_dtype));
  result.lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < q.size(1); begin += kQueryBlock) {
    const Block block = query_block(arguments, begin);
    const ReferenceOutput rows = reference_attention(
        block.q, block.query_sums, {&block.part, 1}, arguments.scale, {&block.start, 1});
    result.out.slice(1, block.begin, block.end).copy_(rows.out);
    result.lse.slice(2, block.begin, block.end).copy_(rows.lse);
  }
  return result;
}

BackwardPart backward_part(const PartArguments& arguments,
                           const at::Tensor& dout,
                           const at::Tensor& lse,
                           const at::Tensor& delta) {
  const at::Tensor& q = arguments.q;
  const KeyPart& part = arguments.part;
  const auto f32 = q.options().dtype(at::kFloat);
  const auto f64 = q.options().dtype(at::kDouble);
  const at::Tensor dk = at::zeros(part.k.sizes(), f32);
  const at::Tensor dv = at::zeros(part.v.sizes(), f32);
  BackwardPart result;
  result.dq = at::zeros(q.sizes(), f32);
  if (part.sums.defined()) {
    result.dquery_sums = at::zeros(arguments.query_sums.sizes(), f64);
    result.dsums = at::zeros(part.sums.sizes(), f64);
  }
  for (int64_t begin = 0; begin < q.size(1); begin += kQueryBlock) {
    const Block block = query_block(arguments, begin);
    const ReferenceGradients rows = reference_backward_part(dout.slice(1, begin, block.end),
                                                            block.q,
                                                            block.query_sums,
                                                            block.part,
                                                            lse.slice(2, begin, block.end),
                                                            delta.slice(2, begin, block.end),
                                                            block.start,
                                                            arguments.scale);
    result.dq.slice(1, begin, block.end).copy_(rows.dq);
    dk.slice(1, 0, block.keys).add_(rows.dk);
    dv.slice(1, 0, block.keys).add_(rows.dv);
    if (part.sums.defined()) {
      result.dquery_sums.slice(2, begin, block.end).copy_(rows.dquery_sums);
      result.dsums.slice(2, 0, block.keys).add_(rows.dsums);
    }
  }
  result.dk = dk.to(q.scalar_type());
  result.dv = dv.to(q.scalar_type());
  return result;
}

}  // namespace reynard::attention::cpu
