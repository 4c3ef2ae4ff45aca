// reynard chat MODEL: a conversation in the terminal.

#include "cli/chat_history.h"
#include "cli/chat_input.h"
#include "cli/command.h"
#include "cli/message.h"
#include "cli/pruning_note.h"
#include "cli/sampling_options.h"
#include "cli/stop_signal.h"
#include "cli/text_model.h"
#include "reynard/generation/chat_template.h"
#include "reynard/generation/generator.h"
#include "reynard/generation/text_stream.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reynard::cli {

namespace {

using generation::ChatMessage;
using generation::FinishReason;
using generation::Sequence;
using nlohmann::ordered_json;

struct ChatArguments {
  TextModelArguments model;
  SamplingArguments sampling{.options = {}, .logit_bias = {}, .max_tokens = 1024};
  std::string system, chat_template, history;
  bool show_prompt = false, json = false;
};

constexpr const char* kChatFooter =
    "Examples:\n"
    "  reynard chat models/llama-instruct\n"
    "  reynard chat models/qwen --system \"Answer in one sentence.\" -t 0.7 --top-p 0.9\n"
    "  reynard chat models/qwen --history talk.json        # goes on where it ended\n"
    "  printf 'Hello\\nAnd in French?\\n' | reynard chat models/qwen --json\n"
    "\n"
    "Each line is a message; one that ends with a backslash goes on in the next. A terminal cuts "
    "lines after 4095 bytes: such a one is not sent, pipe longer ones. A line that begins with a "
    "slash is a command: /new begins a new conversation, /exit or Ctrl-D ends it, "
    "/help lists them; a message that begins with a slash is written with two. Ctrl-C ends the "
    "answer that is being written and keeps what is there of it; while nothing is written it ends "
    "the program (exit code 130).\n";

constexpr const char* kChatCommands =
    "/new     begins a new conversation\n"
    "/exit    ends the program, as Ctrl-D does\n"
    "/help    lists these commands\n"
    "//TEXT   is the message /TEXT\n";

enum class Command { kNone, kUnknown, kNew, kExit, kHelp };

Command command_of(const std::string& line) {
  if (!line.starts_with('/') || line.starts_with("//")) return Command::kNone;
  const std::string name = line.substr(0, line.find_last_not_of(" \t") + 1);
  return name == "/new"    ? Command::kNew
         : name == "/exit" ? Command::kExit
         : name == "/help" ? Command::kHelp
                           : Command::kUnknown;
}

// A person types it once more; whoever else wrote it has to know that it was not said.
void refuse_command(const std::string& line) {
  constexpr std::size_t kMaxShown = 40;
  const std::string message = fmt::format(
      "{:?} is no command; expected /new, /exit or /help, or two slashes before a "
      "message that begins with one",
      tokenizer::displayable(line.substr(0, kMaxShown)));
  if (isatty(STDIN_FILENO) == 0) throw Error("chat: " + message);
  print_message("{}\n", message);
}

struct Answer {
  std::string text = {};
  std::string finish_reason = {};
  int64_t prompt_tokens = 0, reused_tokens = 0, new_tokens = 0;
};

// The model's side of a conversation: keeps the state of what was read and written, so that a turn
// reads its own words alone.
class Talker {
 public:
  Talker(TextModel& model, const ChatArguments& arguments, generation::SequenceOptions options)
      : model_(model),
        arguments_(arguments),
        options_(std::move(options)),
        template_(chat_template_of(model, arguments.chat_template)),
        generator_(model.decoder, {.memories = model.memories}) {}

  // Throws where the template refuses them.
  void check(const std::vector<ChatMessage>& messages) const { template_.render(messages); }

  Answer answer(const std::vector<ChatMessage>& messages, bool streams) {
    generation::ChatPrompt prompt = generation::chat_prompt(template_, *model_.tokenizer, messages);
    if (prompt.tokens.empty()) throw Error("chat: the template writes an empty prompt");
    if (arguments_.show_prompt) print_message("{}\n", template_.render(messages));
    generation::SequenceOptions options = options_;
    if (arguments_.sampling.ignore_eos) {
      prompt.stop_texts.clear();
    } else {
      options.stop = std::move(prompt.stop);
      options.stop.insert(options.stop.end(), model_.stop.begin(), model_.stop.end());
    }
    Sequence sequence = generator_.start(prompt.tokens, options);
    const int64_t reused_tokens = adopt_state(sequence);
    Answer answer = write(sequence, prompt.stop_texts, streams);
    answer.prompt_tokens = std::ssize(prompt.tokens);
    answer.reused_tokens = reused_tokens;
    keep_state(std::move(sequence));
    return answer;
  }

 private:
  // Gives the sequence what the last turn left, as far as the prompt begins alike. Returns how many
  // tokens need no reading.
  int64_t adopt_state(Sequence& sequence) {
    if (!state_ || !is_reusable(sequence)) return 0;
    const std::vector<int64_t>& prompt = sequence.prompt();
    const auto [own, other] = std::ranges::mismatch(tokens_, prompt);
    int64_t same = std::min<int64_t>(own - tokens_.begin(), std::ssize(prompt) - 1);
    // Token shifts can go back to some lengths only, and nothing behind what was freed.
    while (same > 0 && same < state_->length() && !state_->can_truncate(same)) --same;
    models::SequenceState state = std::move(*state_);
    state_.reset();
    if (same == 0) return 0;
    if (same < state.length()) state.truncate(same);
    sequence.adopt(std::move(state));
    return same;
  }

  bool is_reusable(const Sequence& sequence) const {
    return model_.decoder.config().reads_as_a_beginning(std::ssize(sequence.prompt()));
  }

  void keep_state(Sequence sequence) {
    state_.reset();
    if (!is_reusable(sequence)) return;
    tokens_ = sequence.prompt();
    for (const auto& token : sequence.written()) tokens_.push_back(token.token);
    tokens_.resize(sequence.state().length());
    state_ = std::move(sequence.state());
  }

  // What was written; of the prompt it says nothing.
  Answer write(Sequence& sequence, const std::vector<std::string>& stop_texts, bool streams) {
    Answer answer;
    const std::atomic<bool>& stop = stop_flag();
    generation::TextStream stream(*model_.tokenizer, {.stop = stop_texts});
    const auto show = [&](const std::string& piece) {
      answer.text += piece;
      if (!streams) return;
      fmt::print("{}", piece);
      std::fflush(stdout);
    };
    std::size_t num_read = 0;  // tokens whose text is in the stream
    while (!sequence.is_prefilled() && !stop) generator_.prefill(sequence);
    while (!stop && sequence.finished() == FinishReason::kNone) {
      generator_.step(std::array{&sequence});
      // Guessed tokens may be written behind what stops the text.
      while (num_read < sequence.written().size() && !stream.is_stopped()) {
        show(stream.add(sequence.written()[num_read++].token));
      }
      if (stream.is_stopped()) sequence.finish(FinishReason::kStop);
    }
    show(stream.finish());
    answer.new_tokens = static_cast<int64_t>(num_read);
    answer.finish_reason = sequence.finished() == FinishReason::kNone   ? "interrupted"
                           : sequence.finished() == FinishReason::kStop ? "stop"
                                                                        : "length";
    return answer;
  }

  TextModel& model_;
  const ChatArguments& arguments_;
  generation::SequenceOptions options_;  // but for what stops a text
  generation::ChatTemplate template_;
  generation::Generator generator_;
  std::optional<models::SequenceState> state_;
  std::vector<int64_t> tokens_;  // that the state holds
};

void print_answer(const Answer& answer) {
  const ordered_json line = {{"role", "assistant"},
                             {"content", tokenizer::displayable(answer.text)},
                             {"finish_reason", answer.finish_reason},
                             {"prompt_tokens", answer.prompt_tokens},
                             {"reused_tokens", answer.reused_tokens},
                             {"new_tokens", answer.new_tokens}};
  fmt::print("{}\n", line.dump());
}

bool begins_with_system(const std::vector<ChatMessage>& messages) {
  return !messages.empty() && messages.front().role == "system";
}

// The messages so far: those of the history, or what the model is told before all else.
std::vector<ChatMessage> first_messages(const ChatArguments& arguments,
                                        const ChatHistory& history) {
  std::vector<ChatMessage> messages = history.messages();
  if (arguments.system.empty()) return messages;
  if (messages.empty()) return {{"system", arguments.system}};
  if (!begins_with_system(messages) || messages.front().content != arguments.system) {
    throw Error(fmt::format(
        "chat: --system {:?}: the conversation of --history {} begins with {} system's text; leave "
        "--system out to go on with it, or name another file",
        arguments.system,
        arguments.history,
        begins_with_system(messages) ? "another" : "no"));
  }
  return messages;
}

// The messages so far, here and in the file of --history.
class Conversation {
 public:
  explicit Conversation(const ChatArguments& arguments)
      : history_(arguments.history), messages_(first_messages(arguments, history_)) {}

  // That the template takes what there is with a message behind it: what is typed is not lost.
  void check(const Talker& talker, const ChatArguments& arguments) const {
    std::vector<ChatMessage> next = messages_;
    next.push_back({"user", "Hello"});
    try {
      talker.check(next);
    } catch (const Error& error) {
      const bool goes_on = !history_.messages().empty();
      if (messages_.empty()) throw;
      throw Error(
          fmt::format("{}; they are {} {:?} and one of the user: leave it out, or name "
                      "another --chat-template",
                      error.what(),
                      goes_on ? "those of --history" : "the text of --system",
                      goes_on ? arguments.history : arguments.system));
    }
  }

  // What the model was told before all else stays.
  void begin_anew() {
    const std::size_t num_kept = begins_with_system(messages_) ? 1 : 0;
    if (messages_.size() > num_kept) history_.put_aside();
    messages_.resize(num_kept);
  }

  Answer say(const std::string& message, Talker& talker, bool streams) {
    messages_.push_back({"user", message});
    Answer answer = talker.answer(messages_, streams);
    if (answer.text.empty() && answer.finish_reason == "interrupted") {
      messages_.pop_back();  // nothing was said
    } else {
      messages_.push_back({"assistant", answer.text});
    }
    history_.write(messages_);
    return answer;
  }

 private:
  ChatHistory history_;
  std::vector<ChatMessage> messages_;
};

// Until /exit, or the end of the input.
void talk(Conversation& conversation, Talker& talker, bool json) {
  ChatInput input;
  while (const std::optional<std::string> line = input.next("> ")) {
    const Command command = command_of(*line);
    if (command == Command::kExit) return;
    if (command == Command::kNew) conversation.begin_anew();
    if (command == Command::kHelp) print_message("{}", kChatCommands);
    if (command == Command::kUnknown) refuse_command(*line);
    if (command != Command::kNone || line->empty()) continue;
    const std::string message = line->starts_with('/') ? line->substr(1) : *line;
    // Kept before it is shown whole: the terminal may be gone.
    const Answer answer = conversation.say(message, talker, /*streams=*/!json);
    if (json) {
      print_answer(answer);
    } else {
      fmt::print("\n{}", isatty(STDOUT_FILENO) != 0 ? "\n" : "");
    }
    std::fflush(stdout);
    if (answer.finish_reason != "interrupted") continue;
    if (isatty(STDIN_FILENO) == 0 || !clear_interrupt()) throw ExitWith{kInterruptedExitCode};
  }
  if (stop_flag()) {
    fmt::print("\n");
    throw ExitWith{kInterruptedExitCode};
  }
}

void run_chat(const ChatArguments& arguments) {
  // Mistakes are told before a model is read.
  const generation::SequenceOptions options = arguments.sampling.sequence_options();
  Conversation conversation(arguments);
  TextModel model = open_text_model(arguments.model);
  arguments.sampling.check_tokens(model.decoder.config().vocab_size);
  print_pruning_note(model.decoder.config());
  Talker talker(model, arguments, options);
  conversation.check(talker, arguments);
  talk(conversation, talker, arguments.json);
}

}  // namespace

void add_chat(CLI::App& app) {
  auto* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  auto arguments = std::make_shared<ChatArguments>();
  add_options(*command, arguments->model);
  command->add_option("--system", arguments->system, "what the model is told before all else");
  command->add_option(
      "--chat-template",
      arguments->chat_template,
      "chatml, llama2, llama3, longllama or a Jinja file; by default that of the model's "
      "folder");
  command->add_option("--history",
                      arguments->history,
                      "JSON file of messages: read if it is there, written after each answer; /new "
                      "puts it aside as NAME-1.json");
  add_options(*command, arguments->sampling);
  command->add_flag("--show-prompt",
                    arguments->show_prompt,
                    "write to standard error what the model reads, as the template makes it");
  command->add_flag("--json", arguments->json, "one JSON line per answer");
  command->footer(kChatFooter);
  command->callback([arguments] { run_chat(*arguments); });
}

}  // namespace reynard::cli
