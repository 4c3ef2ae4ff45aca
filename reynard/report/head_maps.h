#pragma once
// Small multiples of lower-triangular maps, one per attention head, with the pruning boundary on
// top: the figure that decay and attention of heads are shown in.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

struct HeadMap {
  std::string label;
  const nlohmann::json* triangle = nullptr;  // the lower triangle, row by row
  const nlohmann::json* start = nullptr;     // first key kept per 128 queries; null: not shown
};

struct HeadMaps {
  std::vector<HeadMap> maps;
  double begin = 0, end = 0;             // tokens that rows and columns stand for
  int64_t cells = 0;                     // rows and columns
  const nlohmann::json* text = nullptr;  // of each token from `begin` on; null: not shown
  nlohmann::json color;                  // encoding of the field "v"
  double threshold = -1e300;             // values below are left blank
  size_t columns = 0;                    // maps side by side where they fit; 0: as many as fit
  int least = 96;                        // pixels of a map on a narrow page ...
  int largest = 192;                     // ... and at most
};

// Whether pruning skips anything of what the map shows.
bool is_pruned(const HeadMap& map);

nlohmann::json maps_spec(const HeadMaps& maps);

// Colour from `least` to 1 on a log scale, as a share.
nlohmann::json log_color(const char* title, double least = 1e-4);
// Colour from `least` to `most`.
nlohmann::json linear_color(const char* title, double least, double most, const char* format);

}  // namespace reynard::report
