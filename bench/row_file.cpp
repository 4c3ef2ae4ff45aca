#include "bench/row_file.h"

#include "bench/reference_figures.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/json_file.h"
#include "reynard/training/machine.h"

#include <nlohmann/json.hpp>

namespace reynard::bench {

void check_rows_can_be_written(const std::string& path) {
  if (!path.empty()) checkpoint::AtomicFile{path};  // of which nothing remains
}

void write_rows(const Rows& rows, const std::string& path) {
  if (path.empty()) return;
  const std::string commit = training::git_revision();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    list.push_back({{"name", row.name},
                    {"shape", row.shape},
                    {"dtype", row.dtype},
                    {"device", row.device},
                    {"ours", row.ours},
                    {"peer", row.peer},
                    {"peer_value", row.peer_value},
                    {"unit", row.unit},
                    {"ratio", row.ratio},
                    {"ours_best", row.ours_best},
                    {"peer_best", row.peer_best},
                    {"commit", commit},
                    {"note", slow_peer_note(row, machine_kind())}});
  }
  checkpoint::write_atomically(path, config::json_text(list, 1) + "\n");
}

}  // namespace reynard::bench
