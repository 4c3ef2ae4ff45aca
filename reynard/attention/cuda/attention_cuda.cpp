#include "reynard/attention/cuda/attention_cuda.h"

#include "reynard/attention/cuda/bounds.h"
#include "reynard/attention/cuda/gate_scan.h"
#include "reynard/attention/cuda/path.h"
#include "reynard/attention/cuda/simt.h"
#include "reynard/attention/cuda/sm80/backward.h"
#include "reynard/attention/cuda/sm80/floors.h"
#include "reynard/attention/cuda/sm80/forward.h"
#include "reynard/attention/cuda/sm90/backward.h"
#include "reynard/attention/cuda/sm90/forward.h"
#include "reynard/attention/operand_of.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <limits>

namespace reynard::attention::cuda {

namespace {

Problem problem_of(const PartArguments& arguments) {
  const at::Tensor& q = arguments.q;
  const KeyPart& part = arguments.part;
  Problem p;
  p.B = static_cast<int>(q.size(0)), p.Tq = static_cast<int>(q.size(1));
  p.H = static_cast<int>(q.size(2)), p.D = static_cast<int>(q.size(3));
  p.Tk = static_cast<int>(part.k.size(1)), p.G = static_cast<int>(part.k.size(2));
  p.q = operand_of(q), p.k = operand_of(part.k), p.v = operand_of(part.v);
  p.scale = static_cast<float>(arguments.scale);
  p.causal = part.causal;
  TORCH_INTERNAL_ASSERT(arguments.query_sums.defined() == part.sums.defined());
  if (part.sums.defined()) {
    p.query_sums = arguments.query_sums.const_data_ptr<double>();
    p.key_sums = part.sums.const_data_ptr<double>();
  }
  if (part.first_key.defined()) p.first_key = part.first_key.const_data_ptr<int32_t>();
  if (arguments.start.defined()) p.start = arguments.start.const_data_ptr<int32_t>();
  return p;
}

at::Tensor no_lse(const at::Tensor& q) {
  return at::full({q.size(0), q.size(2), q.size(1)},
                  -std::numeric_limits<double>::infinity(),
                  q.options().dtype(at::kFloat));
}

void run_forward(const PartArguments& arguments, const at::Tensor& out, const at::Tensor& lse) {
  const c10::cuda::CUDAGuard device(arguments.q.device());
  ForwardTask task;
  task.problem = problem_of(arguments);
  if (out.defined()) task.out = operand_of(out);
  task.lse = lse.data_ptr<float>();
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  const auto scratch = [&](int64_t bytes) {
    return at::empty({bytes}, arguments.q.options().dtype(at::kByte));
  };
  const Path path = current_path();
  if (path >= Path::kSm90 && sm90::takes_forward(task)) {
    const at::Tensor bytes = scratch(sm90::forward_scratch_bytes(task.problem));
    sm90::forward(task, bytes.data_ptr(), num_processors(), stream);
  } else if (path >= Path::kSm80 && sm80::takes_forward(task)) {
    const at::Tensor bytes = scratch(sm80::forward_scratch_bytes(task.problem));
    sm80::forward(task, bytes.data_ptr(), stream);
  } else {
    simt::forward(task, stream);
  }
}

void run_backward(const BackwardTask& task, const at::TensorOptions& bytes) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  const Path path = current_path();
  if (path >= Path::kSm90 && sm90::takes_backward(task)) {
    const at::Tensor scratch = at::empty({sm90::backward_scratch_bytes(task.problem)}, bytes);
    sm90::backward(task, scratch.data_ptr(), num_processors(), stream);
  } else if (path >= Path::kSm80 && sm80::takes_backward(task)) {
    const at::Tensor scratch = at::empty({sm80::backward_scratch_bytes(task.problem)}, bytes);
    sm80::backward(task, scratch.data_ptr(), stream);
  } else {
    simt::backward(task, stream);
  }
}

GateScan scan_of(const at::Tensor& log_gate) {
  return {log_gate.const_data_ptr(),
          log_gate.scalar_type() == at::kDouble,
          static_cast<int>(log_gate.size(0)),
          static_cast<int>(log_gate.size(1)),
          static_cast<int>(log_gate.size(2))};
}

// While the library is loaded.
const bool kRegistered = [] {
  static const PartKernels table = {.forward = forward_part,
                                    .floors = floors_of_part,
                                    .backward = backward_part,
                                    .row_products = row_products,
                                    .pruned_starts = pruned_starts,
                                    .gate_sums = gate_sums,
                                    .gate_sums_backward = gate_sums_backward,
                                    .decode = decode_pages,
                                    .write_pages = write_pages,
                                    .read_pages = read_pages};
  register_part_kernels(at::kCUDA, table);
  return true;
}();

}  // namespace

RowArray row_array(const at::Tensor& x) {
  return {operand_of(x),
          static_cast<int>(x.size(0)),
          static_cast<int>(x.size(1)),
          static_cast<int>(x.size(2)),
          static_cast<int>(x.size(3))};
}

ForwardPart forward_part(const PartArguments& arguments, at::ScalarType out_dtype) {
  const at::Tensor& q = arguments.q;
  if (q.numel() == 0) return {at::zeros(q.sizes(), q.options().dtype(out_dtype)), no_lse(q)};
  const ForwardPart result = {
      at::empty(q.sizes(), q.options().dtype(out_dtype)),
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))};
  run_forward(arguments, result.out, result.lse);
  return result;
}

PartFloors floors_of_part(const PartArguments& arguments, double log_tolerance) {
  const at::Tensor& q = arguments.q;
  if (q.numel() == 0) return {.lse = no_lse(q)};
  const int64_t B = q.size(0), Tq = q.size(1), H = q.size(2), Tk = arguments.part.k.size(1);
  const c10::cuda::CUDAGuard device(q.device());
  const Problem problem = problem_of(arguments);
  PartFloors result;
  if (current_path() >= Path::kSm80 && sm80::takes_floors(problem)) {
    result.lse = at::empty({B, H, Tq}, q.options().dtype(at::kDouble));
    sm80::FloorTask task = {.problem = problem,
                            .log_tolerance = log_tolerance,
                            .floors = result.lse.data_ptr<double>()};
    if (sm80::measures_blocks(problem)) {
      const auto f32 = q.options().dtype(at::kFloat);
      const int64_t G = arguments.part.k.size(2), blocks = (Tk + kKeyBlock - 1) / kKeyBlock;
      result.query_norms = at::empty({B, H, (Tq + kQueryBlock - 1) / kQueryBlock}, f32);
      result.key_norms = at::empty({B, G, blocks}, f32);
      task.of_blocks.query_norms = result.query_norms.data_ptr<float>();
      task.of_blocks.key_norms = result.key_norms.data_ptr<float>();
      if (problem.key_sums) {
        result.masses = at::empty({B, H, blocks}, q.options().dtype(at::kDouble));
        task.of_blocks.masses = result.masses.data_ptr<double>();
      }
    }
    sm80::floors(task, c10::cuda::getCurrentCUDAStream());
    return result;
  }
  result.lse = at::empty({B, H, Tq}, q.options().dtype(at::kFloat));
  PartArguments nearest = arguments;
  nearest.start = nearest_starts(q, arguments.part);
  run_forward(nearest, at::Tensor(), result.lse);
  return result;
}

BackwardPart backward_part(const PartArguments& arguments,
                           const at::Tensor& dout,
                           const at::Tensor& lse,
                           const at::Tensor& delta,
                           at::ScalarType dq_dtype) {
  BackwardPart result = empty_gradients(arguments, dq_dtype);
  if (arguments.q.numel() == 0) {
    for (at::Tensor* x : {&result.dk, &result.dv, &result.dsums}) {
      if (x->defined()) x->zero_();
    }
    return result;
  }
  const c10::cuda::CUDAGuard device(arguments.q.device());
  const at::Tensor whole_lse = lse.contiguous(), whole_delta = delta.contiguous();
  BackwardTask task;
  task.problem = problem_of(arguments);
  task.dout = operand_of(dout);
  task.lse = whole_lse.const_data_ptr<float>();
  task.delta = whole_delta.const_data_ptr<double>();
  task.dq = operand_of(result.dq), task.dk = operand_of(result.dk), task.dv = operand_of(result.dv);
  if (result.dsums.defined()) {
    task.dquery_sums = result.dquery_sums.data_ptr<double>();
    task.dkey_sums = result.dsums.data_ptr<double>();
  }
  run_backward(task, arguments.q.options().dtype(at::kByte));
  return result;
}

at::Tensor row_products(const at::Tensor& dout, const at::Tensor& out) {
  const c10::cuda::CUDAGuard device(dout.device());
  const int64_t B = dout.size(0), T = dout.size(1), H = dout.size(2);
  const auto f64 = dout.options().dtype(at::kDouble);
  if (dout.numel() == 0) return at::zeros({B, H, T}, f64);
  at::Tensor products = at::empty({B, H, T}, f64);
  cuda::row_products(row_array(dout),
                     operand_of(out),
                     products.data_ptr<double>(),
                     c10::cuda::getCurrentCUDAStream());
  return products;
}

at::Tensor gate_sums(const at::Tensor& log_gate) {
  const c10::cuda::CUDAGuard device(log_gate.device());
  at::Tensor sums = at::empty({log_gate.size(0), log_gate.size(2), log_gate.size(1)},
                              log_gate.options().dtype(at::kDouble));
  if (sums.numel() == 0) return sums;
  GateScan scan = scan_of(log_gate);
  const at::Tensor totals =
      at::empty({int64_t{scan.B} * scan.H * gate_chunks(scan.T)}, sums.options());
  gate_sums(
      scan, totals.data_ptr<double>(), sums.data_ptr<double>(), c10::cuda::getCurrentCUDAStream());
  return sums;
}

at::Tensor gate_sums_backward(const at::Tensor& dsums,
                              const at::Tensor& log_gate,
                              const at::Tensor& first_key) {
  const c10::cuda::CUDAGuard device(log_gate.device());
  at::Tensor dgate = at::empty(log_gate.sizes(), log_gate.options());
  if (dgate.numel() == 0) return dgate;
  GateGradient gradient;
  gradient.scan = scan_of(log_gate);
  gradient.dsums = dsums.const_data_ptr<double>();
  if (first_key.defined()) {
    gradient.first_key = first_key.const_data_ptr<int32_t>();
    gradient.Tq = static_cast<int>(first_key.size(1));
  }
  gradient.dgate = dgate.mutable_data_ptr();
  const at::Tensor scratch =
      at::empty({gate_gradient_scratch_bytes(gradient.scan)}, log_gate.options().dtype(at::kByte));
  gate_sums_backward(gradient, scratch.data_ptr(), c10::cuda::getCurrentCUDAStream());
  return dgate;
}

}  // namespace reynard::attention::cuda
