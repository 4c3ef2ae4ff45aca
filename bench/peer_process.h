#pragma once
// A benchmark's peer in another process: a Python script that answers each line on its stdin with
// one line on its stdout.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

namespace reynard::bench {

class PeerProcess {
 public:
  // script: name in bench/peers; arguments: its command line. Run by $REYNARD_PEER_PYTHON, else by
  // the Python that has torch, with as many threads as this process uses. Throws reynard::Error
  // when it cannot be started.
  PeerProcess(const std::string& script, const std::vector<std::string>& arguments);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Sends a line and waits for the answer. Throws reynard::Error when the peer has ended.
  std::string ask(const std::string& line);
  // The same for an answer that is a number; throws reynard::Error for any other.
  double ask_number(const std::string& line);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string script_, python_;
  pid_t process_ = -1;
  std::unique_ptr<std::FILE, Close> to_, from_;
};

}  // namespace reynard::bench
