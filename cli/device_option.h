#pragma once
// --device cpu|cuda|auto, the same on every command that computes with a model.

#include <string>

namespace CLI {
class App;
}

namespace reynard::cli {

// Adds --device; `device` holds the default, or is empty: something else decides.
// tensor::choose_device turns the word into a device.
void add_device_option(CLI::App& command, std::string& device);

}  // namespace reynard::cli
