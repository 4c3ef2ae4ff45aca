#include "reynard/http/listener.h"

#include "tests/support/errors.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_client.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <new>
#include <string>
#include <string_view>
#include <thread>

namespace reynard::http {
namespace {

// Listens at a free port until the end of its scope.
class Listening {
 public:
  explicit Listening(Listener& listener)
      : listener_(listener),
        port_(listener.bind_to_any_port("127.0.0.1")),
        thread_(listen(listener)) {}
  ~Listening() {
    listener_.close_idle();
    listener_.stop();
    thread_.join();
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

  int port() const { return port_; }

 private:
  Listener& listener_;
  int port_;
  std::thread thread_;
};

// What is answered to these bytes until the connection ends.
std::string answers_to(int port, const std::string& requests) {
  const test::RawClient client(port);
  client.send(requests);
  return client.read_all();
}

std::string answer_to(int port, const std::string& path) {
  return answers_to(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

// Memory may end while an answer is written in pieces, when no handler is there to say so.
TEST(Listener, WhatFailsOnAConnectionEndsNoOther) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8);
  listener.Get("/fails", [](const httplib::Request&, httplib::Response& response) {
    response.set_chunked_content_provider(
        "text/plain", [](size_t, httplib::DataSink&) -> bool { throw std::bad_alloc(); });
  });
  listener.Get("/works", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("works", "text/plain");
  });
  const int port = listener.bind_to_any_port("127.0.0.1");
  std::thread thread = listen(listener);
  EXPECT_EQ(answer_to(port, "/fails").find("works"), std::string::npos);
  EXPECT_TRUE(answer_to(port, "/works").ends_with("works"));
  listener.close_idle();
  listener.stop();
  thread.join();
  EXPECT_EQ(listener.num_connections(), 0);
}

TEST(Listener, HandlersAreToldBothEnds) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8);
  listener.Get("/ends", [](const httplib::Request& request, httplib::Response& response) {
    response.set_content(fmt::format("{} {}, {} {}",
                                     request.remote_addr,
                                     request.remote_port,
                                     request.local_addr,
                                     request.local_port),
                         "text/plain");
  });
  const Listening listening(listener);
  const int port = listening.port();
  const test::RawClient client(port);
  client.send("GET /ends HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(client.read_all().ends_with(
      fmt::format("\r\n127.0.0.1 {}, 127.0.0.1 {}", client.port(), port)));
}

TEST(Listener, AnswersAreWholeWhateverRangeIsAskedFor) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8);
  listener.Get("/works", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("works", "text/plain");
  });
  const Listening listening(listener);
  const int port = listening.port();
  for (const char* range : {"bytes=0-1", "bytes=900-", "bytes=-2", "bytes=0-0,2-2"}) {
    const std::string answer = answers_to(
        port,
        fmt::format("GET /works HTTP/1.1\r\nHost: x\r\nRange: {}\r\nConnection: close\r\n\r\n",
                    range));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\nworks")) << answer;
  }
}

// The library looks for the letters of a coding anywhere in the field.
TEST(Listener, AnswersAreCompressedForThoseAloneWhoTakeIt) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8);
  listener.Get("/works", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("works", "text/plain");
  });
  const Listening listening(listener);
  const auto coding_for = [&](const std::string& fields) {
    const std::string answer =
        answers_to(listening.port(),
                   "GET /works HTTP/1.1\r\nHost: x\r\n" + fields + "\r\nConnection: close\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
    constexpr std::string_view kName = "\r\nContent-Encoding: ";
    const std::size_t at = answer.find(kName);
    if (at == answer.npos) return std::string();
    const std::size_t begin = at + kName.size();
    return answer.substr(begin, answer.find("\r\n", begin) - begin);
  };
  for (const char* none : {"gzip;q=0",
                           "identity, gzip;q=0",
                           "gzip;q=0.0, identity",
                           "gzip ; Q=0.000",
                           "notgzip",
                           "gzip;q=no",
                           "abr, x-br",
                           "br;q=0",
                           "*",
                           "*;q=0",
                           ""}) {
    EXPECT_EQ(coding_for(std::string("Accept-Encoding: ") + none), "") << none;
  }
  for (const char* gzip : {"gzip", "gzip;q=0.5", "identity, GZIP", "x-gzip", "br;q=0,gzip;q=1"}) {
    EXPECT_EQ(coding_for(std::string("Accept-Encoding: ") + gzip), "gzip") << gzip;
  }
  EXPECT_EQ(coding_for("Accept-Encoding: identity\r\naccept-encoding: gzip"), "gzip");
  EXPECT_EQ(coding_for("Accept-Encoding: br"), "br");
}

// Two requests on a connection, the second behind a body that was read to its end.
TEST(Listener, TargetsMayNameTheirHost) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8);
  listener.Post("/read", [](const httplib::Request& request, httplib::Response& response) {
    response.set_content(request.body + request.get_param_value("more"), "text/plain");
  });
  const Listening listening(listener);
  const int port = listening.port();
  const auto answers_at = [&](const std::string& target) {
    const std::string request = "POST " + target + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n";
    return answers_to(port, request + "\r\nabc" + request + "Connection: close\r\n\r\ndef");
  };
  for (const std::string host :
       {"", "http://127.0.0.1:80", "HTTP://another.example", "http://[::1]:"}) {
    const std::string answers = answers_at(host + "/read?more=!");
    EXPECT_NE(answers.find("\r\n\r\nabc!HTTP/1.1 200 "), std::string::npos) << host << answers;
    EXPECT_TRUE(answers.ends_with("\r\n\r\ndef!")) << host << answers;
  }
  EXPECT_TRUE(answers_at("http://user@x/read").starts_with("HTTP/1.1 400 "));
  EXPECT_TRUE(answers_at("https://x/read").starts_with("HTTP/1.1 421 "));
}

TEST(Listener, ConnectionsStayAsLongAsAnswersPromise) {
  Listener listener({.keep_alive_seconds = 2, .read_seconds = 1}, /*max_connections=*/8);
  listener.Post("/read", [](const httplib::Request& request, httplib::Response& response) {
    response.set_content(request.body, "text/plain");
  });
  const Listening listening(listener);
  const int port = listening.port();
  const std::string request = "POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n";
  const std::string last = request + "Connection: close\r\n\r\ndef";
  // An empty line behind a body is none of the next request; two are.
  const std::string kept = answers_to(port, request + "\r\nabc\r\n" + last);
  EXPECT_NE(kept.find("Keep-Alive: timeout=2, max=1000\r\n"), std::string::npos) << kept;
  EXPECT_NE(kept.find("\r\n\r\nabcHTTP/1.1 200 "), std::string::npos) << kept;
  EXPECT_TRUE(kept.ends_with("\r\n\r\ndef")) << kept;
  EXPECT_TRUE(answers_to(port, "\r\n\r\n" + last).starts_with("HTTP/1.1 400 "));
  const std::string closed = answers_to(port, request + "Connection: close, TE\r\n\r\nabc" + last);
  EXPECT_NE(closed.find("Connection: close\r\n"), std::string::npos) << closed;
  EXPECT_TRUE(closed.ends_with("\r\n\r\nabc")) << closed;
  // HTTP/1.0 may ask for it, in vain.
  const std::string old = answers_to(
      port, "POST /read HTTP/1.0\r\nConnection: Keep-Alive\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_NE(old.find("Connection: close\r\n"), std::string::npos) << old;
  EXPECT_TRUE(old.ends_with("\r\n\r\nabc")) << old;
}

TEST(Listener, ConnectionsOnWhichNothingComesEnd) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 30}, /*max_connections=*/8);
  listener.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("!", "text/plain");
  });
  const Listening listening(listener);
  for (const std::string request : {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"}) {
    const test::RawClient client(listening.port());
    client.send(request);
    EXPECT_EQ(client.read_all().ends_with("!"), !request.empty());
    char byte = 0;
    EXPECT_EQ(::recv(client.socket, &byte, 1, MSG_DONTWAIT), 0) << "it is open still";
  }
}

// As many as the first answer promises, of which the last one says that it is.
TEST(Listener, AConnectionHasAThousandRequests) {
  Listener listener({.keep_alive_seconds = 2, .read_seconds = 5}, /*max_connections=*/8);
  listener.Get("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("!", "text/plain");
  });
  const Listening listening(listener);
  std::string requests;
  for (int i = 0; i < 1001; ++i) requests += "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string answers = answers_to(listening.port(), requests);
  int count = 0;
  for (size_t at = 0; (at = answers.find("HTTP/1.1 200 ", at)) != answers.npos; ++at) ++count;
  EXPECT_EQ(count, 1000);
  EXPECT_GT(answers.find("\r\nConnection: close\r\n"), answers.rfind("HTTP/1.1 200 "));
  EXPECT_NE(answers.find("\r\nConnection: close\r\n"), answers.npos);
}

TEST(Listener, RefusalsNameWhatIsWrong) {
  Listener listener({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8);
  listener.Get("/works", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("works", "text/plain");
  });
  const Listening listening(listener);
  const auto answer_to_head = [&](const std::string& head) {
    return answers_to(listening.port(), head + "\r\n\r\n");
  };
  EXPECT_TRUE(answer_to_head("GET /works HTTP/1.0").ends_with("works"));
  const std::string hostless = answer_to_head("GET /works HTTP/1.1\r\nConnection: close");
  EXPECT_TRUE(hostless.starts_with("HTTP/1.1 400 ")) << hostless;
  EXPECT_NE(hostless.find("the field Host is missing"), std::string::npos) << hostless;
  for (const char* fields : {"", "\r\nContent-Length: 3"}) {
    const std::string unknown =
        answer_to_head(std::string("FOO /works HTTP/1.1\r\nHost: x") + fields);
    EXPECT_TRUE(unknown.starts_with("HTTP/1.1 501 Not Implemented\r\n")) << unknown;
  }
  const auto answer_to_line = [&](std::size_t bytes) {
    const std::string name = "X: ";
    const std::string line = name + std::string(bytes - name.size(), 'x');
    return answer_to_head("GET /works HTTP/1.0\r\n" + line);
  };
  EXPECT_TRUE(answer_to_line(8190).ends_with("works"));
  const std::string long_line = answer_to_line(8191);
  EXPECT_TRUE(long_line.starts_with("HTTP/1.1 431 ")) << long_line;
  EXPECT_NE(long_line.find("a line of the head has 8191 bytes; it may have 8190"),
            std::string::npos)
      << long_line;
}

// They would be refused; the threads that read them hold the process up.
TEST(Listener, RequestsThatHaveOnlyBegunEndWithIt) {
  Listener listener({.keep_alive_seconds = 300, .read_seconds = 300}, /*max_connections=*/8);
  listener.Post("/read", [](const httplib::Request& request, httplib::Response& response) {
    response.set_content(request.body, "text/plain");
  });
  const int port = listener.bind_to_any_port("127.0.0.1");
  std::thread thread = listen(listener);
  const test::RawClient head(port), body(port);
  head.send("POST /rea");
  body.send("POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  ASSERT_TRUE(test::eventually([&] { return listener.num_connections() == 2; }));
  listener.close_idle();
  listener.stop();
  EXPECT_TRUE(test::eventually([&] { return listener.num_connections() == 0; }));
  thread.join();
}

TEST(Listener, WhoCannotListenSaysSo) {
  Listener unbound({}, /*max_connections=*/8);
  EXPECT_SAYS(test::error_of([&] { listen(unbound); }), "expected a socket that is bound");
}

}  // namespace
}  // namespace reynard::http
