#pragma once
// Small decoders for tests: configs that together use every switch of the attention mixer, and
// weights that make each of them matter.

#include "reynard/models/decoder.h"

#include <ostream>
#include <string>
#include <vector>

namespace reynard::test {

struct Variant {
  std::string name;
  models::DecoderConfig config;
};
inline void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

// Width 32, 2 layers, 4 heads, vocabulary 48.
models::DecoderConfig small_config();
const std::vector<Variant>& attention_variants();
// What only layouts of the Llama family express: scaled RoPE, biases, norms with their own epsilon.
const std::vector<Variant>& llama_variants();
// The same for the mixer memory_attention, with contexts of 16 tokens.
const std::vector<Variant>& memory_variants();

// Larger random weights, norms away from 1 and biases away from 0, so that a forgotten weight or an
// exchanged pair shows.
void spread_weights(models::Decoder& decoder, uint64_t seed);

}  // namespace reynard::test
