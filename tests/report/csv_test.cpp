#include "reynard/report/csv.h"

#include <gtest/gtest.h>

#include <string>

namespace reynard::report {
namespace {

using json = nlohmann::json;

TEST(Csv, HasOneLinePerRunAndMetric) {
  RunResults fox;
  fox.name = "fox, \"pro\"";
  fox.evaluations["per_position_loss"] = json::parse(R"({"metrics": {
      "loss": 1.25, "standard_error": 0.5, "rows": 3, "bits_per_byte": 2.5,
      "val/loss_avg_len_512": 1.5, "at_lengths": [{"length": 512, "loss": 1.5}]}})");
  RunResults lru;
  lru.name = "lru";
  lru.evaluations["lm_eval"] = json::parse(R"({"metrics": {"piqa/acc": 0.75}, "series": {"groups": [
      {"task": "piqa", "metric": "acc", "value": 0.75, "standard_error": 0.01}]}})");
  lru.evaluations["needle"] = json::parse(R"({"metrics": {
      "score": 1, "standard_error": null, "rating": null, "answered": true}})");
  lru.evaluations["ruler"] = json::parse(R"({"metrics": {
      "score": 0.5, "standard_error": 0.1, "effective_length": {"length": 4096, "text": "4096"}}})");
  lru.evaluations["text_sample"] = json::parse(R"({"task": "text_sample"})");
  EXPECT_EQ(csv({fox, lru}),
            "run,task,metric,value,standard_error,unit\r\n"
            "\"fox, \"\"pro\"\"\",per_position_loss,bits_per_byte,2.5,,bits/byte\r\n"
            "\"fox, \"\"pro\"\"\",per_position_loss,loss,1.25,0.5,nats/token\r\n"
            "\"fox, \"\"pro\"\"\",per_position_loss,rows,3,,\r\n"
            "\"fox, \"\"pro\"\"\",per_position_loss,val/loss_avg_len_512,1.5,,nats/token\r\n"
            "lru,lm_eval,piqa/acc,0.75,0.01,\r\n"
            "lru,needle,score,1,,\r\n"
            "lru,ruler,effective_length/length,4096,,tokens\r\n"
            "lru,ruler,score,0.5,0.1,\r\n");
}

// Files of other programs hold anything.
TEST(Csv, LeavesOutWhatIsNoMetric) {
  RunResults run;
  run.name = "a";
  run.evaluations["x"] = json::parse(R"({"metrics": [1, 2]})");
  run.evaluations["y"] = json::parse(R"({"metrics": 3})");
  run.evaluations["z"] = json::parse(R"({"metrics": {"loss": 1, "standard_error": "many"},
                                         "series": {"groups": [1, {"task": 2}]}})");
  EXPECT_EQ(csv({run}), std::string(kCsvHeader) + "a,z,loss,1,,nats/token\r\n");
}

TEST(Csv, LeavesOutIdsOfTokens) {
  RunResults run;
  run.name = "a";
  run.evaluations["forgetting_curve"] =
      json::parse(R"({"metrics": {"adjusted": 0.25, "bos": 256, "eos": 257}})");
  EXPECT_EQ(csv({run}), std::string(kCsvHeader) + "a,forgetting_curve,adjusted,0.25,,\r\n");
}

}  // namespace
}  // namespace reynard::report
