#include "reynard/http/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace reynard::http {
namespace {

struct Ends {
  int ours = -1, theirs = -1;

  Ends() {
    int both[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
    ours = both[0], theirs = both[1];
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  ~Ends() {
    ::close(ours);
    if (theirs >= 0) ::close(theirs);
  }
  // Until nothing fits any more.
  void fill() const {
    const std::string bytes(1 << 16, 'x');
    while (::send(ours, bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }
  void read_all_after(std::chrono::milliseconds pause) const {
    std::this_thread::sleep_for(pause);
    std::string bytes(1 << 20, '\0');
    while (::recv(theirs, bytes.data(), bytes.size(), 0) > 0 &&
           bytes.find('y') == std::string::npos) {
    }
  }
};

TEST(Connection, ASlowReaderIsWaitedFor) {
  const Ends ends;
  Connection connection(ends.ours, {.write_seconds = 20});
  ends.fill();
  EXPECT_TRUE(connection.is_writable()) << "who reads slowly is there all the same";
  std::thread reader([&] { ends.read_all_after(std::chrono::milliseconds(100)); });
  const std::string last = "and y";
  EXPECT_EQ(connection.write(last.data(), last.size()), std::ssize(last));
  reader.join();
}

TEST(Connection, WhoReadsNothingIsGivenUp) {
  const Ends ends;
  Connection connection(ends.ours, {.write_seconds = 1});
  ends.fill();
  EXPECT_EQ(connection.write("x", 1), -1);
}

// However it goes on: a server that stops is not held by one reader.
TEST(Connection, ASlowReaderIsCutOff) {
  const Ends ends;
  std::atomic<bool> cut = false;
  Connection connection(ends.ours, {.write_seconds = 600}, &cut);
  EXPECT_EQ(connection.write("x", 1), 1);
  ends.fill();
  std::thread stop([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cut = true;
  });
  EXPECT_EQ(connection.write("x", 1), -1);
  stop.join();
}

TEST(Connection, WhoHasGoneTakesNothing) {
  Ends ends;
  Connection connection(ends.ours, {});
  EXPECT_TRUE(connection.is_writable());
  ::close(std::exchange(ends.theirs, -1));
  EXPECT_FALSE(connection.is_writable());
  EXPECT_EQ(connection.write("x", 1), -1);
}

// As those of a request that was sent before the answer to the last one was there.
TEST(Connection, WhoHasGoneMayLeaveBytesBehind) {
  Ends ends;
  const Connection connection(ends.ours, {});
  ASSERT_EQ(::send(ends.theirs, "GET", 3, 0), 3);
  EXPECT_TRUE(connection.is_writable());
  ::close(std::exchange(ends.theirs, -1));
  EXPECT_FALSE(connection.is_writable());
}

}  // namespace
}  // namespace reynard::http
