// BABILong's worlds, prompts, scoring and files.

#include "reynard/evaluation/babilong.h"

#include "reynard/tensor/check.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

TEST(Babilong, StoriesAnswerTheirQuestion) {
  for (const BabiTask& task : babi_tasks()) {
    SCOPED_TRACE(task.name);
    std::set<std::string> answers;
    for (uint64_t seed = 0; seed < 300; ++seed) {
      PythonRandom random(seed);
      const BabiStory story = task.make(random, 1000);
      ASSERT_GE(story.facts.size(), 2);
      ASSERT_LE(story.facts.size(), 130);
      EXPECT_TRUE(story.question.ends_with('?'));
      EXPECT_NE(std::find(task.labels.begin(), task.labels.end(), story.answer), task.labels.end())
          << story.answer;
      EXPECT_TRUE(babilong_correct(task, story.answer + ".", story.question, story.answer))
          << story.question << " " << story.answer;
      answers.insert(story.answer);
    }
    EXPECT_GE(answers.size(), 6);  // no answer is favoured by construction
  }
}

TEST(Babilong, LatestPlaceIsTheAnswerOfOneFact) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    PythonRandom random(seed);
    const BabiStory story = babi_task_named("qa1").make(random, 10);
    EXPECT_LE(story.facts.size(), 10);
    const std::string who = story.question.substr(9, story.question.size() - 10);
    std::string last;
    for (const std::string& fact : story.facts) {
      if (fact.starts_with(who)) last = fact;
    }
    EXPECT_NE(last.find(" the " + story.answer + "."), std::string::npos)
        << story.question << " " << last;
  }
}

TEST(Babilong, GiftIsTheLatest) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    PythonRandom random(seed);
    const BabiStory story = babi_task_named("qa5").make(random, 20);
    std::string gift;
    for (const std::string& fact : story.facts) {
      if (fact.find(" to ") != std::string::npos && fact.find(" to the ") == std::string::npos) {
        gift = fact;
      }
    }
    EXPECT_NE(gift.find(story.answer), std::string::npos) << story.question << " " << gift;
  }
}

// As in bAbI, nobody moves to where the facts told that they are.
TEST(Babilong, PeopleMoveToOtherPlaces) {
  for (const BabiTask& task : babi_tasks()) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      PythonRandom random(seed);
      std::map<std::string, std::string> places;
      for (const std::string& fact : task.make(random, 60).facts) {
        const size_t to = fact.find(" to the ");
        if (to == std::string::npos || task.name == "qa4") continue;
        std::string& place = places[fact.substr(0, fact.find(' '))];
        EXPECT_NE(place, fact.substr(to)) << task.name << ": " << fact;
        place = fact.substr(to);
      }
    }
  }
}

// As in bAbI, who gives is where the one who receives is, as far as the facts tell.
TEST(Babilong, PeopleGiveToThoseWhoAreWhereTheyAre) {
  const std::set<std::string> gives = {"gave", "passed", "handed"};
  int64_t told = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PythonRandom random(seed);
    const size_t most = 2 + seed % 59;
    const BabiStory story = babi_task_named("qa5").make(random, static_cast<int64_t>(most));
    ASSERT_LE(story.facts.size(), most);
    std::map<std::string, std::string> places;  // those that a fact told
    std::map<std::string, std::string> holders;
    for (const std::string& fact : story.facts) {
      std::istringstream words(fact.substr(0, fact.size() - 1));
      const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      const std::string& who = word.front();
      if (!gives.contains(word[1])) {
        if (word.back() != "there") places[who] = word.back();  // moved
        if (word.back() == "there") holders[word[word.size() - 2]] = who;
        continue;
      }
      const std::string& receiver = word.back();
      std::string& holder = holders[word[3]];  // WHO gave the THING to RECEIVER
      EXPECT_EQ(holder, who) << fact;
      holder = receiver;
      if (places.contains(who) && places.contains(receiver)) {
        EXPECT_EQ(places[who], places[receiver]) << fact;
        ++told;
      }
    }
  }
  EXPECT_GT(told, 300);
}

TEST(Babilong, OnlyTheRightLabelMayBeNamed) {
  const BabiTask& task = babi_task_named("qa1");
  const auto correct = [&](const char* written) {
    return babilong_correct(task, written, "Where is Mary?", "kitchen");
  };
  EXPECT_TRUE(correct(" The most recent location of Mary is KITCHEN. Not the garden."));
  EXPECT_FALSE(correct("kitchen or garden"));
  EXPECT_FALSE(correct("somewhere. kitchen"));
  EXPECT_TRUE(correct("kitchen<example> garden"));
  EXPECT_TRUE(correct("kitchen<context> garden"));
  EXPECT_FALSE(correct(""));
  // What the question names does not count against the answer.
  EXPECT_TRUE(babilong_correct(task,
                               "Before the garden it was in the kitchen",
                               "Where was it before the garden?",
                               "kitchen"));
}

TEST(Babilong, PromptIsThePublishedOne) {
  const std::string prompt = babilong_prompt(babi_task_named("qa4"), "CONTEXT", "What?");
  EXPECT_TRUE(prompt.starts_with(
      "I will give you context with the facts about different people, their location and actions, "
      "hidden in some random text and a question. You need to answer the question based only on "
      "the "
      "information from the facts.\n\n<example>\nThe hallway is south of the kitchen."));
  EXPECT_TRUE(
      prompt.ends_with("</example>\n\nYour answer should contain only one word - location. Do not "
                       "write anything else "
                       "after that.\n\n<context>\nCONTEXT\n</context>\n\nQuestion: What?"));
}

TEST(Babilong, ReadsItsFiles) {
  const test::TempDir folder;
  test::write_file(folder / "qa1_x.txt",
                   "1 Mary moved to the bathroom.\n2 Where is Mary? \tbathroom\t1\n"
                   "3 John went to the hallway.\r\n4 Where is John? \thallway\t3\n"
                   "1 Sandra went to the office.\n2 Where is Sandra? \toffice\t1\n");
  const std::vector<BabiStory> stories = read_babi(folder / "qa1_x.txt").stories;
  ASSERT_EQ(stories.size(), 3);
  EXPECT_EQ(stories[1].facts.size(), 2);
  EXPECT_EQ(stories[1].question, "Where is John?");
  EXPECT_EQ(stories[1].answer, "hallway");
  EXPECT_EQ(stories[2].facts, std::vector<std::string>{"Sandra went to the office."});
  test::write_file(folder / "bad.txt", "1 Mary moved.\nMary?\n");
  try {
    read_babi(folder / "bad.txt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("bad.txt:2"), std::string::npos);
  }
  test::write_file(folder / "bad.txt", "1 Mary moved.\nMary?\n2 Where is Mary? \toffice\t1\n");
  const BabiFile skipped = read_babi(folder / "bad.txt", /*skip_bad=*/true);
  EXPECT_EQ(skipped.skipped, 1);
  EXPECT_EQ(skipped.stories.size(), 1);
}

TEST(Babilong, UnknownTaskListsTheKnownOnes) {
  EXPECT_THROW(babi_task_named("qa6"), Error);
}

}  // namespace
}  // namespace reynard::evaluation
