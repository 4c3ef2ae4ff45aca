#pragma once
// --device cpu|cuda|auto, the same on every command that computes with a model.

#include <c10/core/Device.h>

#include <string>

namespace CLI {
class App;
}

namespace reynard::cli {

// Adds --device; `device` holds the default, or is empty: something else decides.
// tensor::choose_device turns the word into a device.
void add_device_option(CLI::App& command, std::string& device);

// The device of a command that only reads a model: tensor::choose_device, but weights of 8 bits
// (dtype "int8") are for the CPU, which auto then means.
at::Device reading_device(const std::string& device, const std::string& dtype);

}  // namespace reynard::cli
