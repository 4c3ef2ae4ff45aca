#pragma once
// Speed of decode on a GPU: one query over pages in random order against a copy's bandwidth, pruned
// against own dense, timed by events in one Python process (peers/decode_cuda_peer.py) that loads
// this library. No prefill: pages are bf16.

#include "bench/attention.h"
#include "bench/peer_process.h"
#include "bench/rows.h"

#include <vector>

namespace reynard::bench {

struct DecodeCudaBench {
  // T cached tokens, whole pages; B is 1.
  std::vector<AttentionShape> shapes = {{.H = 24, .G = 24, .T = 16384},
                                        {.H = 24, .G = 24, .T = 65536},
                                        {.H = 24, .G = 24, .T = 262144},
                                        {.H = 24, .G = 6, .T = 65536},
                                        {.H = 12, .G = 12, .T = 65536, .D = 128},
                                        {.H = 8, .G = 8, .T = 65536, .D = 256},
                                        {.H = 32, .G = 4, .T = 65536, .D = 128}};
  int repeats = 30;
  Measured measured = [](const Rows&, int64_t, int64_t) {};  // behind each shape
};

// decode: GB/s, the bytes of keys, values and sums of gates over the time of a token; those of the
// copy are read and written. pruned_decode: ms, with three local heads of four. A row's device
// holds clocks, torch and commit. Throws reynard::Error where results differ from f64 by more than
// bf16 explains or one run from another in any bit; nothing of that shape is timed then.
Rows bench_decode_cuda(const DecodeCudaBench& options);

// The same from a peer that runs already.
Rows decode_cuda_rows(PeerProcess& peer, const DecodeCudaBench& options);

}  // namespace reynard::bench
