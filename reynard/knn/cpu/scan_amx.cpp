#include "reynard/knn/cpu/scan_kernels.inl"

#include "reynard/knn/cpu/pack_bf16.inl"
#include "reynard/tensor/amx_tiles.inl"

namespace reynard::knn::cpu {

namespace {

constexpr int64_t kTileRows = 16;

// Keys lie as the left factor of a tile product wants them: tiles 5 and 6, 16 keys of 32 elements.
// Queries are the right factor, tile 4; scores (16 keys, queries) are tiles 0 to 3: as wide as
// there are queries.
constexpr int kNarrowTiles = 5;

template <int64_t num_queries>
void score(const KeyBlock& block, const void* packed, float* scores) {
  static_assert(kKeyStep == 4 * kTileRows && kDepthStep == 2 * kTileRows);
  constexpr int64_t kRowBytes = num_queries * 4;
  const tensor::AmxTiles tiles(kNarrowTiles, 4 * num_queries);
  const auto* keys = static_cast<const uint16_t*>(block.keys);
  const int64_t key_bytes = block.stride * 2;
  for (int64_t i = 0; i < block.size; i += kKeyStep) {
    const uint16_t* key = keys + i * block.stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < block.depth; d += kDepthStep) {
      _tile_loadd(4, static_cast<const uint16_t*>(packed) + d * num_queries, kRowBytes);
      _tile_loadd(5, key + d, key_bytes);
      _tile_dpbf16ps(0, 5, 4);
      _tile_loadd(6, key + d + kTileRows * block.stride, key_bytes);
      _tile_dpbf16ps(1, 6, 4);
      _tile_loadd(5, key + d + 2 * kTileRows * block.stride, key_bytes);
      _tile_dpbf16ps(2, 5, 4);
      _tile_loadd(6, key + d + 3 * kTileRows * block.stride, key_bytes);
      _tile_dpbf16ps(3, 6, 4);
    }
    float* out = scores + i * num_queries;
    _tile_stored(0, out, kRowBytes);
    _tile_stored(1, out + kTileRows * num_queries, kRowBytes);
    _tile_stored(2, out + 2 * kTileRows * num_queries, kRowBytes);
    _tile_stored(3, out + 3 * kTileRows * num_queries, kRowBytes);
  }
}

uint32_t score_one_amx(const KeyBlock& block, const void* packed, float* scores) {
  const uint32_t most = largest<true>(block);
  score<1>(block, packed, scores);
  return most;
}

}  // namespace

ScanTables amx_scan() {
  ScanTables tables = make_tables();
  tables.bf16.widen = nullptr;
  tables.bf16.packs_bf16 = true;
  tables.bf16.flushes_denormals = true;
  tables.bf16.pack_one = pack_one_bf16;
  tables.bf16.pack_many = pack_many_bf16;
  tables.bf16.score_one = score_one_amx;
  tables.bf16.score_many = score<kQueryLanes>;
  return tables;
}

}  // namespace reynard::knn::cpu
