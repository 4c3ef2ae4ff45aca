# What compares a GPU with the CPU runs by hand on a machine that has one (CONTRIBUTING.md).
add_test(NAME generation COMMAND generation_test --gtest_filter=-*GreedyTextIsThatOfTheCPU*)
