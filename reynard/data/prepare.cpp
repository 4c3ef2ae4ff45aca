#include "reynard/data/prepare.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/data/file_pipeline.h"
#include "reynard/data/recorded_tokenizer.h"
#include "reynard/data/token_file_writer.h"
#include "reynard/tensor/counted.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

namespace reynard::data {

namespace {

void check_options(const PrepareOptions& options) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) throw Error("prepare: " + message);
  };
  require(!options.inputs.empty(), "no input; name text files or folders");
  require(!options.output.empty(), "no output folder; give one with --output FOLDER");
  require(options.held_out >= 0 && options.held_out < 1,
          fmt::format("--held-out {}; expected at least 0 and less than 1", options.held_out));
  require(options.min_bytes >= 1,
          fmt::format("--min-bytes {}; expected at least 1", options.min_bytes));
  require(options.roll_min_tokens >= 1,
          fmt::format("--roll-min-tokens {}; expected at least 1", options.roll_min_tokens));
  require(!options.dialogues || !options.roll_seed,
          "--roll moves text and --dialogues says where answers are; leave one out");
  require(options.num_threads >= 0,
          fmt::format("--threads {}; expected at least 0", options.num_threads));
}

// How each file is read, in particular what of it is held out.
std::vector<TextReaderOptions> reader_options(const std::vector<InputFile>& files,
                                              const PrepareOptions& options) {
  TextReaderOptions common;
  common.field = text_field(options.field, files);
  common.dialogues = options.dialogues;
  common.held_out_share = options.held_out;
  std::vector<TextReaderOptions> result(files.size(), common);
  if (options.held_out == 0) return result;
  std::vector<InputFile> texts;
  std::vector<TextReaderOptions*> readers;  // of texts
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].is_jsonl() || !begins_as_text(files[i], options.min_bytes)) continue;
    texts.push_back(files[i]);
    readers.push_back(&result[i]);
  }
  const std::vector<bool> held = choose_held_out(texts, options.held_out);
  for (size_t i = 0; i < texts.size(); ++i) readers[i]->held_out = held[i];
  if (texts.size() != 1) return result;
  if (!texts[0].is_compressed()) {
    const auto size = static_cast<double>(texts[0].size);
    readers[0]->held_out_from_byte =
        std::max<int64_t>(static_cast<int64_t>(size * (1 - options.held_out)), 1);
  } else if (std::ranges::none_of(files, &InputFile::is_jsonl)) {
    throw Error(
        fmt::format("{}: --held-out cannot split a single packed file, whose length is "
                    "not known before it is read; unpack it first",
                    texts[0].path.string()));
  }
  return result;
}

// What stands around documents. A vocabulary with one of the two, like GPT-2's, uses it for both.
struct Ends {
  int64_t bos = 0;
  int64_t eos = 0;
};
Ends ends_of(const tokenizer::Tokenizer& tokenizer, const std::string& name) {
  const std::optional<int64_t> bos = tokenizer.bos();
  const std::optional<int64_t> eos = tokenizer.eos();
  if (!bos && !eos) {
    throw Error(fmt::format(
        "prepare: the tokenizer {} has no token that begins or ends a text; name them in its "
        "tokenizer_config.json as \"bos_token\" and \"eos_token\"",
        name));
  }
  return {bos ? *bos : *eos, eos ? *eos : *bos};
}

// Takes the events of the pipeline to the writers.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, const tokenizer::Tokenizer& tokenizer)
      : options_(options), record_(record_of(options.tokenizer)) {
    const Ends ends = ends_of(tokenizer, options.tokenizer);
    std::error_code error;
    std::filesystem::create_directories(options.output, error);
    if (error || !std::filesystem::is_directory(options.output)) {
      throw Error(fmt::format("{}: cannot be made a folder{}{}",
                              options.output.string(),
                              error ? ": " : "",
                              error ? error.message() : ""));
    }
    const TokenFileWriterOptions writer_options{.tokenizer = record_.name,
                                                .vocab_size = tokenizer.vocab_size(),
                                                .bos = ends.bos,
                                                .eos = ends.eos,
                                                .roll_seed = options.roll_seed,
                                                .roll_min_tokens = options.roll_min_tokens};
    add_output(options.output / "train.tokens", writer_options);
    const std::filesystem::path held_out = options.output / "held_out.tokens";
    if (options.held_out > 0) {
      add_output(held_out, writer_options);
    } else if (std::filesystem::exists(held_out)) {
      // Who measures on it would measure on text of train.tokens.
      throw Error(fmt::format(
          "{}: is of an earlier run; without --held-out its text may come into train.tokens; "
          "remove it or choose another --output",
          held_out.string()));
    } else {
      remove_partial(held_out);
    }
  }

  void take(const InputFile& file, const Event& event) {
    switch (event.kind) {
      case Event::Kind::kBegin:
        current_ = event.held_out && outputs_.size() > 1 ? 1 : 0;
        outputs_[current_].writer->begin_document();
        break;
      case Event::Kind::kTokens:
        outputs_[current_].writer->append(event.ids);
        break;
      case Event::Kind::kAnswer:
        outputs_[current_].writer->begin_answer();
        break;
      case Event::Kind::kAnswerEnd:
        outputs_[current_].writer->end_answer();
        break;
      case Event::Kind::kEnd:
        end_document(file, event);
        break;
      case Event::Kind::kNotText:
        outputs_[current_].writer->drop_document();
        skip("files that are not UTF-8 text", event.message);
        --summary_.num_files;  // the event of its end comes, too
        break;
      case Event::Kind::kFileDone:
        ++summary_.num_files;
        break;
    }
  }

  void skip(const std::string& reason, const std::string& what) {
    auto known = std::find_if(summary_.skipped.begin(),
                              summary_.skipped.end(),
                              [&](const Skipped& skipped) { return skipped.reason == reason; });
    if (known == summary_.skipped.end()) {
      known = summary_.skipped.insert(known, {reason, 0, {}});
    }
    ++known->count;
    // Documents of one file come one after the other.
    if (known->names.empty() || known->names.back() != what) known->names.push_back(what);
  }

  PrepareSummary finish() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].writer->num_documents() == 0) fail_no_text(i == 1);
      outputs_[i].writer->finish();
    }
    write_record(record_, options_.output);
    if (outputs_.size() > 1) remove_old(outputs_[1].written.path);
    for (Output& output : outputs_) {
      output.writer->commit();
      output.written.num_documents = output.writer->num_documents();
      output.written.num_tokens = output.writer->num_tokens();
      summary_.written.push_back(output.written);
    }
    remove_unused_records(options_.output);
    return summary_;
  }

 private:
  struct Output {
    std::unique_ptr<TokenFileWriter> writer;
    PreparedFile written;
  };

  void add_output(const std::filesystem::path& path, const TokenFileWriterOptions& options) {
    outputs_.push_back({std::make_unique<TokenFileWriter>(path, options), {.path = path}});
  }

  // A held-out file of another run must not lie beside the new train.tokens, which may hold its
  // text, not even where this process is killed between the two.
  static void remove_old(const std::filesystem::path& path) {
    std::error_code error;
    if (std::filesystem::remove(path, error)) checkpoint::sync_folder(path.parent_path());
    if (error)
      throw Error(fmt::format("{}: cannot be removed: {}", path.string(), error.message()));
  }

  void end_document(const InputFile& file, const Event& event) {
    Output& output = outputs_[current_];
    const bool is_empty = event.num_bytes == 0;
    if (is_empty && !file.from_folder && !file.is_jsonl()) {
      throw Error(fmt::format("{}: is empty; expected text", file.path.string()));
    }
    if (event.num_bytes < options_.min_bytes) {
      output.writer->drop_document();
      skip(is_empty ? "empty documents"
                    : "documents of less than " + counted(options_.min_bytes, "byte"),
           file.path.string());
    } else if (options_.deduplicate && !seen_.insert({event.hash[0], event.hash[1]}).second) {
      output.writer->drop_document();
      skip("documents that came before", file.path.string());
    } else {
      output.writer->end_document(event.num_bytes);
      output.written.num_text_bytes += event.num_bytes;
    }
  }

  [[noreturn]] void fail_no_text(bool held_out) const {
    std::string reasons;
    for (const Skipped& skipped : summary_.skipped) {
      reasons +=
          fmt::format("; {}: {}, first {}", skipped.reason, skipped.count, skipped.names.front());
    }
    if (held_out) {
      throw Error(
          fmt::format("prepare: --held-out {} holds out no document; give more text or a "
                      "larger share{}",
                      options_.held_out,
                      reasons));
    }
    throw Error(fmt::format(
        "{}: no text {}{}",
        options_.inputs.front().string(),
        options_.held_out > 0 ? "is left for training beside what is held out" : "was found",
        reasons));
  }

  const PrepareOptions& options_;
  TokenizerRecord record_;
  std::vector<Output> outputs_;  // train, then held out
  size_t current_ = 0;
  PrepareSummary summary_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;  // documents, by 128 bits of hash
};

PrepareSummary prepare_files(const InputFiles& found,
                             const std::vector<TextReaderOptions>& readers,
                             const PrepareOptions& options,
                             const tokenizer::Tokenizer& tokenizer,
                             int64_t total_bytes,
                             const PrepareProgress& progress) {
  const std::vector<InputFile>& files = found.files;
  Preparation preparation(options, tokenizer);
  for (const std::filesystem::path& link : found.links) {
    preparation.skip("links to folders (to read one, name it itself)", link.string());
  }
  for (const std::filesystem::path& again : found.again) {
    preparation.skip("files that were read already, by another path or link", again.string());
  }
  for (const std::filesystem::path& other : found.others) {
    preparation.skip("links that lead nowhere, pipes and the like", other.string());
  }
  for (const std::filesystem::path& earlier : found.earlier) {
    preparation.skip("the output folder and copies of tokenizers", earlier.string());
  }
  for (const std::filesystem::path& hidden : found.hidden) {
    preparation.skip("hidden files and folders", hidden.string());
  }
  const auto machine = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  FilePipeline pipeline(
      files, readers, tokenizer, options.num_threads > 0 ? options.num_threads : machine);
  for (size_t i = 0; i < files.size();) {
    const Event event = pipeline.next();
    preparation.take(files[i], event);
    if (event.kind == Event::Kind::kFileDone) ++i;
    if (progress) progress(pipeline.done_bytes(), total_bytes);
  }
  return preparation.finish();
}

}  // namespace

PrepareSummary prepare(const PrepareOptions& options, const PrepareProgress& progress) {
  check_options(options);
  const auto tokenizer = tokenizer::make_tokenizer(options.tokenizer);
  const InputFiles found = find_input_files(options.inputs, options.patterns, options.output);
  int64_t total_bytes = 0;
  for (const InputFile& file : found.files) {
    if (file.size == 0 && !file.from_folder) {
      throw Error(fmt::format("{}: is empty; expected text", file.path.string()));
    }
    if (options.dialogues && !file.is_jsonl()) {
      throw Error(fmt::format("{}: is no .jsonl file; --dialogues reads only those{}",
                              file.path.string(),
                              file.from_folder ? "; choose them with --glob '*.jsonl'" : ""));
    }
    total_bytes += file.size;
  }
  const bool existed = std::filesystem::exists(options.output);
  try {
    return prepare_files(
        found, reader_options(found.files, options), options, *tokenizer, total_bytes, progress);
  } catch (...) {
    std::error_code ignored;  // a folder that we made and that holds nothing says nothing
    if (!existed) std::filesystem::remove(options.output, ignored);
    throw;
  }
}

}  // namespace reynard::data
