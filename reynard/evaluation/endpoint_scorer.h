#pragma once
// Runs requests on an OpenAI-compatible server: log-probabilities by echoing the prompt, text by
// completing it. Prompts are token ids, so that the server scores exactly the tokens that a task
// asks about. There is no look inside, and pruning is the server's. A server of chat completions
// gets prompts as text and gives no log-probabilities.

#include "reynard/evaluation/corpus.h"
#include "reynard/evaluation/endpoint.h"
#include "reynard/evaluation/scorer.h"

#include <memory>

namespace reynard::evaluation {

// The tokens' log-probabilities and hits in an answer to a completion with echo and one token
// written. Throws reynard::Error, naming the field, for an answer that holds none, has another
// number of them or none of numbers: an ignored echo must not become a score.
Scored read_echo(const nlohmann::json& answer, const Score& asked);

// concurrency: requests in flight at once. The corpus gives the tokenizer of what is written and
// must outlive the scorer.
std::unique_ptr<Scorer> make_endpoint_scorer(EndpointOptions options,
                                             const Corpus& corpus,
                                             int64_t concurrency);

}  // namespace reynard::evaluation
