// Replays the messages of a schedule in SimGrid, as coll/executor.cc would send them: a call in
// pieces, of which some are in flight, begun so far apart that they are spread over the rounds; in
// every tick each piece that is under way receives its last round's message and sends the next, the
// newest piece first.
//
//   simgrid_replay PLATFORM.xml STEPS < cases
//
// STEPS: "ranks rounds", then for each round its number of messages and that many "from to share".
// A case is a line "bytes pieces slots ranks_of_a_host"; for each the seconds are printed. Rank r
// is on host node-<r / ranks_of_a_host>. No protocol is modelled: a message starts when it is sent.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg4 = simgrid::s4u;

namespace {

struct Action {
  sg4::Mailbox* send = nullptr;
  double send_share = 0;
  sg4::Mailbox* receive = nullptr;
};

struct Case {
  double bytes = 0;
  int64_t pieces = 1, slots = 1;
  int ranks_of_a_host = 1;
};

struct Message {
  int from, to;
  double share;
};
using Rounds = std::vector<std::vector<Message>>;

void run_rank(const std::vector<Action>& rounds, const Case& call) {
  static char payload;
  auto last = static_cast<int64_t>(rounds.size());
  std::vector<int64_t> starts;  // tick of each piece
  int64_t finished = 0, spacing = std::max<int64_t>(1, (last + call.slots - 1) / call.slots);
  for (int64_t tick = 0; finished < call.pieces; tick++) {
    auto started = static_cast<int64_t>(starts.size());
    bool spread = starts.empty() || tick >= starts.back() + spacing;
    if (started < call.pieces && started - finished < call.slots && spread) starts.push_back(tick);
    for (auto k = static_cast<int64_t>(starts.size()) - 1; k >= finished; k--) {
      int64_t stage = tick - starts[k];
      if (stage > last) continue;
      if (stage > 0 && rounds[stage - 1].receive) rounds[stage - 1].receive->get<char>();
      if (stage == last || !rounds[stage].send) continue;
      const Action& action = rounds[stage];
      auto message = action.send->put_init(
          &payload, static_cast<uint64_t>(action.send_share * call.bytes / call.pieces + 0.5));
      message->detach();
    }
    while (finished < static_cast<int64_t>(starts.size()) && tick - starts[finished] >= last)
      finished++;
  }
}

// In a process of its own: an engine lives once.
double simulate(const char* platform, const Rounds& rounds, int ranks, const Case& call) {
  // What remains is sharing of links' rates between flows, and latency.
  for (const char* option :
       {"network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/weight-S:0",
        "network/latency-factor:1", "network/bandwidth-factor:1", "contexts/stack-size:64"})
    sg4::Engine::set_config(option);
  sg4::Engine* engine = sg4::Engine::get_instance();
  engine->load_platform(platform);
  std::vector<std::vector<Action>> actions(ranks, std::vector<Action>(rounds.size()));
  std::vector<sg4::ActorPtr> actors;
  for (int rank = 0; rank < ranks; rank++) {
    auto* host = sg4::Host::by_name("node-" + std::to_string(rank / call.ranks_of_a_host));
    actors.push_back(sg4::Actor::create("rank-" + std::to_string(rank), host,
                                        [&, rank] { run_rank(actions[rank], call); }));
  }
  for (size_t i = 0; i < rounds.size(); i++)
    for (const Message& m : rounds[i]) {
      auto* box = sg4::Mailbox::by_name(std::to_string(m.from) + ">" + std::to_string(m.to));
      box->set_receiver(actors[m.to]);
      actions[m.from][i].send = box;
      actions[m.from][i].send_share = m.share;
      actions[m.to][i].receive = box;
    }
  engine->run();
  return sg4::Engine::get_clock();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: simgrid_replay PLATFORM.xml STEPS < cases\n";
    return 2;
  }
  std::ifstream file(argv[2]);
  int ranks = 0;
  size_t count = 0;
  file >> ranks >> count;
  Rounds rounds(count);
  for (auto& round : rounds) {
    size_t messages = 0;
    file >> messages;
    round.resize(messages);
    for (Message& m : round) file >> m.from >> m.to >> m.share;
  }
  if (!file) {
    std::cerr << "simgrid_replay: " << argv[2] << " is not as its first line says\n";
    return 1;
  }
  Case call;
  while (std::cin >> call.bytes >> call.pieces >> call.slots >> call.ranks_of_a_host) {
    pid_t child = fork();
    if (child == 0) {
      std::vector<std::string> names = {"simgrid_replay", "--log=root.threshold:error"};
      std::vector<char*> arguments;
      for (std::string& name : names) arguments.push_back(name.data());
      int n = static_cast<int>(arguments.size());
      arguments.push_back(nullptr);
      sg4::Engine engine(&n, arguments.data());
      std::cout.precision(12);
      std::cout << simulate(argv[1], rounds, ranks, call) << std::endl;
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) return 1;
  }
  return 0;
}
