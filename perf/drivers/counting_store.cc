// A fake of Horovod's rendezvous server that counts: PUT, GET and DELETE of /scope/key over HTTP.
//
//   counting_store
//
// It says the port at which it listens. At the end of its input it says in JSON how many requests
// of each kind came, how many bytes of values it was given and has given, how long the longest
// value of a key that ends in ".<round>.<rank>" was (what a rank says) in each round, and that of
// each key that ends in ".all" (the outcome of a round), and ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4, kBacklog = 8192, kLookMs = 20;

std::mutex mutex;  // of all that follows
std::map<std::string, std::string> values;
std::map<std::string, long> requests;
std::map<long, size_t> records;  // by round
std::vector<size_t> outcomes;
long taken = 0, given = 0;
bool ending = false;

bool is_ending() {
  std::lock_guard lock(mutex);
  return ending;
}

// A request up to the end of its body; "" if the client goes away.
std::string read_request(int fd, size_t* head_bytes) {
  std::string text;
  size_t length = 0;
  *head_bytes = std::string::npos;
  char buffer[16384];
  while (*head_bytes == std::string::npos || text.size() < *head_bytes + length) {
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) return "";
    text.append(buffer, static_cast<size_t>(got));
    size_t end = text.find("\r\n\r\n");
    if (*head_bytes != std::string::npos || end == std::string::npos) continue;
    *head_bytes = end + 4;
    size_t at = text.find("Content-Length: ");
    if (at < end) length = std::stoul(text.substr(at + 16));
  }
  return text;
}

std::string response(const char* status, const std::string& body) {
  return "HTTP/1.0 " + std::string(status) + "\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

void note_record(const std::string& path, size_t bytes) {
  size_t rank_at = path.rfind('.');
  size_t round_at = rank_at == std::string::npos ? rank_at : path.rfind('.', rank_at - 1);
  if (round_at == std::string::npos) return;
  std::string round = path.substr(round_at + 1, rank_at - round_at - 1);
  std::string rank = path.substr(rank_at + 1);
  for (const std::string& word : {round, rank})
    if (word.empty() || word.find_first_not_of("0123456789") != std::string::npos) return;
  size_t& longest = records[std::stol(round)];
  longest = std::max(longest, bytes);
}

std::string put(const std::string& path, std::string body) {
  taken += static_cast<long>(body.size());
  note_record(path, body.size());
  if (path.size() > 4 && path.substr(path.size() - 4) == ".all") outcomes.push_back(body.size());
  values[path] = std::move(body);
  return response("200 OK", "");
}

std::string answer_to(const std::string& request, size_t head_bytes) {
  std::string method, path;
  std::istringstream(request) >> method >> path;
  std::lock_guard lock(mutex);
  requests[method]++;
  if (method == "PUT") return put(path, request.substr(head_bytes));
  if (method == "DELETE") {
    values.erase(path);
    return response("200 OK", "");
  }
  auto found = values.find(path);
  if (found == values.end()) return response("404 Not Found", "");
  given += static_cast<long>(found->second.size());
  return response("200 OK", found->second);
}

void serve(int listener) {
  while (!is_ending()) {
    pollfd entry{listener, POLLIN, 0};
    if (poll(&entry, 1, kLookMs) <= 0) continue;
    int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    size_t head_bytes = 0;
    std::string request = read_request(fd, &head_bytes);
    std::string reply = request.empty() ? "" : answer_to(request, head_bytes);
    for (size_t sent = 0; sent < reply.size();) {
      ssize_t now = send(fd, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += static_cast<size_t>(now);
    }
    close(fd);
  }
}

int listen_here(int* port) {
  // Several threads poll it: who comes second finds nothing.
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, generic, length) != 0 || listen(fd, kBacklog) != 0 ||
      getsockname(fd, generic, &length) != 0) {
    std::perror("counting_store");
    std::exit(1);
  }
  *port = ntohs(address.sin_port);
  return fd;
}

std::string report() {
  std::ostringstream text;
  text << "{\"requests\": {";
  const char* between = "";
  for (const auto& [method, count] : requests) {
    text << between << '"' << method << "\": " << count;
    between = ", ";
  }
  text << "}, \"bytes_taken\": " << taken << ", \"bytes_given\": " << given << ", \"records\": [";
  between = "";
  for (const auto& [round, bytes] : records) {
    text << between << bytes;
    between = ", ";
  }
  text << "], \"outcomes\": [";
  for (size_t i = 0; i < outcomes.size(); i++) text << (i ? ", " : "") << outcomes[i];
  text << "], \"keys_left\": " << values.size() << "}";
  return text.str();
}

}  // namespace

int main() {
  int port = 0, listener = listen_here(&port);
  std::cout << port << std::endl;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) threads.emplace_back(serve, listener);
  for (std::string line; std::getline(std::cin, line);) continue;
  {
    std::lock_guard lock(mutex);
    ending = true;
  }
  for (std::thread& thread : threads) thread.join();
  std::cout << report() << std::endl;
  return 0;
}
