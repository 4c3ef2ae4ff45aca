// A model of a published layout or of `reynard train` writes on after a prompt:
//   generate MODEL TOKENIZER PROMPT      TOKENIZER: a file, a folder that holds one, or "byte"

#include "reynard/generation/generator.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace reynard;
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL TOKENIZER PROMPT\n", argv[0]);
    return 2;
  }
  try {
    // Weights as int8 or f32 with other formats; a GPU's with at::kCUDA as the last argument.
    models::Decoder decoder =
        models::open_model(models::model_folder(argv[1]), models::WeightFormat::kBF16);
    const std::unique_ptr<tokenizer::Tokenizer> tokenizer = tokenizer::make_tokenizer(argv[2]);
    const std::vector<int32_t> ids = tokenizer->encode(argv[3]);

    generation::SequenceOptions options{.max_tokens = 64};
    if (tokenizer->eos()) options.stop = {*tokenizer->eos()};
    const std::vector<generation::Prompt> prompts = {
        {.tokens = {ids.begin(), ids.end()}, .options = options}};
    const std::vector<int64_t> written = generation::generate(decoder, prompts).front();
    std::printf("%s%s\n", argv[3], tokenizer->decode(written).c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());  // names the file or value and what is expected
    return 2;
  }
}
