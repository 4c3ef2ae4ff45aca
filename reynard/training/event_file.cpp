#include "reynard/training/event_file.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace reynard::training {

namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78U : 0);
    table[byte] = crc;
  }
  return table;
}

// TFRecord rotates the checksum and adds a constant, so that a checksum of checksums stays sound.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

template <class Number>
void append_raw(std::string& out, Number number) {  // little-endian, as x86-64 is
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// Protocol buffer wire types.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_key(std::string& out, int field, Wire wire) {
  append_varint(out, field << 3 | wire);
}

void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out.append(bytes);
}

// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
// SessionLog session_log = 7; }
std::string event(int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string out;
  append_key(out, 1, kFixed64);
  append_raw(out, std::chrono::duration<double>(now).count());
  append_key(out, 2, kVarint);
  append_varint(out, static_cast<uint64_t>(step));
  return out;
}

// Summary.Value { string tag = 1; float simple_value = 2; }
std::string scalar(std::string_view tag, double value) {
  std::string out;
  append_bytes(out, 1, tag);
  append_key(out, 2, kFixed32);
  append_raw(out, static_cast<float>(value));
  return out;
}

std::string host_name() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 && *name ? name : "localhost";
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = crc_table();
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t first_step) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}", seconds, host_name(), getpid());
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) throw Error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  std::string version = event(0);
  append_bytes(version, 3, "brain.Event:2");
  write_record(version);
  std::string start = event(first_step);
  append_bytes(start, 7, std::string("\x08\x01"));  // SessionLog { status = START }
  write_record(start);
}

void EventFile::write(int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) append_bytes(summary, 1, scalar(tag, value));
  std::string record = event(step);
  append_bytes(record, 5, summary);
  write_record(record);
}

void EventFile::write_record(std::string_view payload) {
  std::string record;
  append_raw(record, static_cast<uint64_t>(payload.size()));
  append_raw(record, masked_crc(record));
  record.append(payload);
  append_raw(record, masked_crc(payload));
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
      std::fflush(file_.get()) != 0) {
    throw Error(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
}

}  // namespace reynard::training
