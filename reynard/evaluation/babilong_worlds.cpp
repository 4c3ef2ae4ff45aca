// The worlds behind qa1 to qa5.

#include "reynard/evaluation/babilong_worlds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace reynard::evaluation {

namespace {

constexpr std::array<std::string_view, 6> kPlaces = {
    "bathroom", "bedroom", "garden", "hallway", "kitchen", "office"};
constexpr std::array<std::string_view, 4> kPeople = {"Mary", "John", "Daniel", "Sandra"};
constexpr std::array<std::string_view, 4> kGivers = {"Mary", "Fred", "Jeff", "Bill"};
constexpr std::array<std::string_view, 3> kThings = {"apple", "football", "milk"};
constexpr std::array<std::string_view, 5> kMoves = {
    "moved to", "went to", "journeyed to", "travelled to", "went back to"};
constexpr std::array<std::string_view, 4> kTakes = {"got", "picked up", "grabbed", "took"};
constexpr std::array<std::string_view, 4> kDrops = {"dropped", "discarded", "left", "put down"};
constexpr std::array<std::string_view, 3> kGives = {"gave", "passed", "handed"};
constexpr std::array<std::string_view, 4> kDirections = {"north", "south", "east", "west"};

template <class List>
std::string one_of(const List& list, PythonRandom& random) {
  return std::string(list[random.up_to(static_cast<int64_t>(list.size()) - 1)]);
}

// People who move, take and drop; where everything is, as far as the facts tell.
class World {
 public:
  explicit World(PythonRandom& random) : random_(random) {}

  void move() {
    const std::string who = one_of(kPeople, random_);
    std::string where = one_of(kPlaces, random_);
    while (where == place_of(who)) where = one_of(kPlaces, random_);
    facts.push_back(fmt::format("{} {} the {}.", who, one_of(kMoves, random_), where));
    places_[who] = where;
    for (const auto& [thing, holder] : holders_) {
      if (holder == who) visits[thing].push_back(where);
    }
  }

  // Takes or drops a thing where somebody whose place is known can; otherwise somebody moves.
  void act() {
    const std::string who = one_of(kPeople, random_);
    const std::string thing = one_of(kThings, random_);
    const std::string where = place_of(who);
    const auto holder = holders_.find(thing);
    if (where.empty()) return move();
    if (holder != holders_.end() && holder->second == who) {
      facts.push_back(fmt::format("{} {} the {} there.", who, one_of(kDrops, random_), thing));
      holders_.erase(holder);
      return;
    }
    // A thing lies where it was left; the first who takes it finds it anywhere.
    const auto seen = visits.find(thing);
    const bool here =
        holder == holders_.end() && (seen == visits.end() || seen->second.back() == where);
    if (!here) return move();
    facts.push_back(fmt::format("{} {} the {} there.", who, one_of(kTakes, random_), thing));
    holders_[thing] = who;
    if (seen == visits.end()) visits[thing].push_back(where);
  }

  std::string place_of(const std::string& who) const {
    const auto found = places_.find(who);
    return found == places_.end() ? "" : found->second;
  }

  std::vector<std::string> facts;
  std::map<std::string, std::vector<std::string>> visits;  // of a thing, the last is where it is

 private:
  PythonRandom& random_;
  std::map<std::string, std::string> places_, holders_;
};

// People who move, take and, where they are together, give.
class GivingWorld {
 public:
  explicit GivingWorld(PythonRandom& random) : random_(&random) {}

  void move() {
    const std::string who = one_of(kGivers, *random_);
    const std::string where = one_of(kPlaces, *random_);
    if (std::exchange(places_[who], where) == where) return;
    facts.push_back(fmt::format("{} {} the {}.", who, one_of(kMoves, *random_), where));
  }

  // Somebody takes the thing, or its holder gives it to them.
  void take_or_give() {
    const std::string thing = one_of(kThings, *random_);
    const std::string who = one_of(kGivers, *random_);
    std::string& holder = holders_[thing];
    if (holder.empty()) {
      facts.push_back(fmt::format("{} {} the {} there.", who, one_of(kTakes, *random_), thing));
    } else if (holder != who && meet(holder, who)) {
      facts.push_back(
          fmt::format("{} {} the {} to {}.", holder, one_of(kGives, *random_), thing, who));
      last = Gift{holder, thing, who};
    } else {
      return;
    }
    holder = who;
  }

  struct Gift {
    std::string giver, thing, receiver;
  };
  std::vector<std::string> facts;
  std::optional<Gift> last;  // the latest gift settles every question

 private:
  // Whoever is not known to be anywhere may be where the other is.
  bool meet(const std::string& a, const std::string& b) {
    std::string& first = places_[a];
    std::string& second = places_[b];
    if (first.empty() && second.empty()) first = one_of(kPlaces, *random_);
    if (first.empty()) first = second;
    if (second.empty()) second = first;
    return first == second;
  }

  PythonRandom* random_;
  std::map<std::string, std::string> places_, holders_;
};

int64_t number_of_facts(PythonRandom& random, int64_t least, int64_t most, int64_t allowed) {
  most = std::max(least, std::min(most, allowed));
  return least + random.up_to(most - least);
}

std::string key_at(const std::map<std::string, std::vector<std::string>>& map, int64_t index) {
  return std::next(map.begin(), index)->first;
}

}  // namespace

// Where is somebody? (one supporting fact)
BabiStory one_fact_story(PythonRandom& random, int64_t most_facts) {
  World world(random);
  const int64_t facts = 2 * number_of_facts(random, 1, 5, most_facts / 2);
  for (int64_t i = 0; i < facts; ++i) world.move();
  std::string who = one_of(kPeople, random);
  while (world.place_of(who).empty()) who = one_of(kPeople, random);
  return {world.facts, fmt::format("Where is {}?", who), world.place_of(who)};
}

// Where is a thing? (two supporting facts)
BabiStory two_facts_story(PythonRandom& random, int64_t most_facts) {
  const int64_t facts = number_of_facts(random, 4, 68, most_facts);
  while (true) {
    World world(random);
    for (int64_t i = 0; i < facts; ++i) random.up_to(1) == 0 ? world.move() : world.act();
    if (world.visits.empty()) continue;
    const auto last = static_cast<int64_t>(world.visits.size()) - 1;
    const std::string thing = key_at(world.visits, random.up_to(last));
    return {world.facts, fmt::format("Where is the {}?", thing), world.visits[thing].back()};
  }
}

// Where was a thing before it came to a place? (three supporting facts)
BabiStory three_facts_story(PythonRandom& random, int64_t most_facts) {
  const int64_t facts = number_of_facts(random, 6, 32, most_facts);
  while (true) {
    World world(random);
    for (int64_t i = 0; i < facts; ++i) random.up_to(1) == 0 ? world.move() : world.act();
    const std::string thing = one_of(kThings, random);
    const std::vector<std::string>& visits = world.visits[thing];
    if (visits.size() < 2) continue;
    // The last visit of the place that is asked for, so that there is one answer.
    const auto index =
        static_cast<size_t>(1 + random.up_to(static_cast<int64_t>(visits.size()) - 2));
    const auto later = visits.begin() + static_cast<std::ptrdiff_t>(index) + 1;
    if (std::find(later, visits.end(), visits[index]) != visits.end()) continue;
    return {world.facts,
            fmt::format("Where was the {} before the {}?", thing, visits[index]),
            visits[index - 1]};
  }
}

// What is north of a place? (relations of two arguments)
BabiStory relation_story(PythonRandom& random, int64_t /*most_facts*/) {
  std::string a = one_of(kPlaces, random);
  std::string b = one_of(kPlaces, random);
  std::string c = one_of(kPlaces, random);
  while (b == a) b = one_of(kPlaces, random);
  while (c == a || c == b) c = one_of(kPlaces, random);
  const std::string first = one_of(kDirections, random);
  std::string second = one_of(kDirections, random);
  while (second == first) second = one_of(kDirections, random);
  BabiStory story{{fmt::format("The {} is {} of the {}.", a, first, b),
                   fmt::format("The {} is {} of the {}.", c, second, b)},
                  {},
                  {}};
  if (random.up_to(1) == 0) std::swap(story.facts[0], story.facts[1]);
  if (random.up_to(1) == 0) {
    story.question = fmt::format("What is {} of the {}?", first, b);
    story.answer = a;
  } else {
    story.question = fmt::format("What is the {} {} of?", a, first);
    story.answer = b;
  }
  return story;
}

// Who gave what to whom? (relations of three arguments)
BabiStory giving_story(PythonRandom& random, int64_t most_facts) {
  const auto wanted = static_cast<size_t>(number_of_facts(random, 2, 126, most_facts));
  GivingWorld world(random);
  while (world.facts.size() < wanted || !world.last) {
    if (world.facts.size() == wanted) world = GivingWorld(random);  // nothing was given in it
    random.up_to(5) == 0 ? world.move() : world.take_or_give();
  }
  const auto& [giver, thing, receiver] = *world.last;
  const std::array<std::array<std::string, 2>, 5> questions = {{
      {fmt::format("What did {} give to {}?", giver, receiver), thing},
      {fmt::format("Who gave the {} to {}?", thing, receiver), giver},
      {fmt::format("Who did {} give the {} to?", giver, thing), receiver},
      {fmt::format("Who gave the {}?", thing), giver},
      {fmt::format("Who received the {}?", thing), receiver},
  }};
  const auto& [question, answer] = questions[static_cast<size_t>(random.up_to(4))];
  return {world.facts, question, answer};
}

}  // namespace reynard::evaluation
