#include "reynard/evaluation/needle_judge.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <regex>
#include <string_view>

namespace reynard::evaluation {

namespace {

// Benchmark data, quoted exactly (NOTICE).
constexpr std::string_view kSystem = "You are a helpful assistant.";
constexpr std::string_view kBeforeAnswer =
    "[Instruction]\n"
    "Please act as an impartial judge and evaluate the quality of the response provided "
    "by small language model to a question displayed below. For this evaluation, you "
    "should primarily consider the following criteria:\n"
    "accuracy: \n"
    "    Score 1: The answer is completely unrelated to the reference.\n"
    "    Score 3: The answer has minor relevance but does not align with the reference.\n"
    "    Score 5: The answer has moderate relevance but contains inaccuracies.\n"
    "    Score 7: The answer aligns with the reference but has minor omissions.\n"
    "    Score 10: The answer is completely accurate and aligns perfectly with the "
    "reference.\n"
    "    Only respond with a numberical score\n"
    "    \n"
    "[Ground truth]\n"
    "\n"
    "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on "
    "a sunny day.\n"
    "\n"
    "Remember that the model is small and not instruction-tuned so it may output "
    "additional garbage content and have strange formatting. These should absolutely not "
    "affect your rating as long as the ground truth is included in the model's response. "
    "Only give your rating based on the relevant (if any) part of the response. Begin "
    "your evaluation by providing a short explanation. Be as objective as possible. "
    "After providing your explanation, you must rate the response on a scale of 1 to 10 "
    "by strictly following this format: \"[[rating]]\", for example: \"Rating: [[5]]\". Some "
    "bad models might give empty response in which case you should give the lowest "
    "score.\n"
    "\n"
    "[Question]\n"
    "What is the best thing to do in San Francisco?\n"
    "\n"
    "[The Start of the Model's Answer]\n";
constexpr std::string_view kAfterAnswer =
    "\n"
    "[The End of the Model's Answer]";

}  // namespace

std::string needle_judge_prompt(const std::string& written) {
  return fmt::format("{}{}{}", kBeforeAnswer, written, kAfterAnswer);
}

std::optional<int64_t> NeedleJudge::rating(const std::string& written) const {
  const auto message = [](std::string_view role, std::string_view content) {
    return nlohmann::json{{"role", role}, {"content", content}};
  };
  const nlohmann::json answer =
      endpoint_.post("chat/completions",
                     {{"model", endpoint_.options().model},
                      {"messages",
                       nlohmann::json::array({message("system", kSystem),
                                              message("user", needle_judge_prompt(written))})},
                      {"temperature", 0}},
                     "choices");
  const nlohmann::json& choice = answer.at("choices")[0];
  const nlohmann::json::json_pointer place("/message/content");
  const nlohmann::json content =
      choice.is_object() ? choice.value(place, nlohmann::json()) : nlohmann::json();
  if (!content.is_string()) {
    throw Error("needle: the judge's answer: choices[0].message.content is missing");
  }
  static const std::regex kRating(R"(\[\[(\d{1,6})\]\])");
  std::smatch match;
  const std::string text = content.get<std::string>();
  if (!std::regex_search(text, match, kRating)) return {};
  return std::stoll(match[1].str());
}

}  // namespace reynard::evaluation
