#pragma once
// Writes TensorBoard event files: TFRecords (length, masked CRC32C, payload, masked CRC32C) of
// Event protocol buffers with scalar summaries. Nothing else of the format.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::training {

// CRC-32C (Castagnoli), as TFRecord uses it before masking.
uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // Creates folder/events.out.tfevents.SECONDS.HOST.PID, which tells readers to forget what older
  // files of the folder say about first_step and later: the run was resumed there, or began anew.
  EventFile(const std::filesystem::path& folder, int64_t first_step);

  using Scalars = std::vector<std::pair<std::string, double>>;
  // One event with all scalars, handed to the operating system before it returns.
  void write(int64_t step, const Scalars& scalars);

 private:
  void write_record(std::string_view payload);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

}  // namespace reynard::training
