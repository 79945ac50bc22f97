#include "fuzz.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "fuzz_calls.h"
#include "fuzz_deltas.h"
#include "fuzz_input.h"
#include "fuzz_rules.h"

namespace fuzz {
namespace {

constexpr size_t kMostSteps = 32;
constexpr int32_t kMostRanks = 1 << 20;
constexpr double kPeerSeconds = 0.1;            // ranks that disagree go on after this time
constexpr double kAloneSeconds = 20;            // of a rank that waits for nobody
constexpr double kBriefSeconds = 0.1;           // the longest that a program waits for one request
constexpr double kInterruptibleSeconds = 0.25;  // the library asks about every 0.1 s

class Player;

/// What a callback is told, and what it does then.
struct Told {
  Player* player = nullptr;
  rc_comm* comm = nullptr;
  size_t deed = 0;
  std::atomic<int> times{0};
};

struct Pending {
  rc_request* request = nullptr;
  Told* told = nullptr;
  bool ends_soon = false;
};

/// When a blocking call is told to end.
struct Interruption {
  size_t after = 0;
  bool is_over = false;
};

int interrupted(void* state) {
  auto& interruption = *static_cast<Interruption*>(state);
  HOLDS(!interruption.is_over);
  interruption.is_over = interruption.after-- == 0;
  return interruption.is_over;
}

void check_failure(rc_status status) {
  if (status == RC_OK) return;
  HOLDS(status > RC_OK && status <= RC_TOO_LONG && status != RC_INTERNAL);
  HOLDS(*ringcoll_error_message() != 0);
  HOLDS(ringcoll_error_rank() >= -1);
}

void check_json(rc_status status, char* json, char* before) {
  check_failure(status);
  if (status != RC_OK) {
    HOLDS(json == before);
    return;
  }
  HOLDS(nlohmann::json::accept(std::string(json)));
  ringcoll_free(json);
}

rc_call barrier() {
  rc_call call{};
  call.struct_size = sizeof call;
  call.collective = RC_BARRIER;
  return call;
}

std::string c_text(Bytes& bytes) {
  std::string text = bytes.text();
  std::erase(text, '\0');
  return text;
}

void simulate(const std::string& request) {
  char before = 0, *json = &before;
  rc_status status = ringcoll_simulate(request.c_str(), &json);
  check_json(status, json, &before);
}

/// One rank: its communicators, its requests, and the memory of its calls.
class Player {
 public:
  Player(rc_comm* world, int rank, int size) : size_(size), places_{{world, rank, size}} {}

  void step(size_t what, Bytes bytes);
  void finish(bool destroys_first);

 private:
  friend void done(void* state, rc_request* request, rc_status status);

  Place& place(Bytes& bytes) { return places_[bytes.below(places_.size())]; }
  rc_comm* handle(const Place& place, Bytes& bytes) {
    return bytes.rarely(64) ? nullptr : place.comm;
  }
  Pending* pending(Bytes& bytes) {
    return requests_.empty() ? nullptr : &requests_[bytes.below(requests_.size())];
  }
  void check(rc_status status, bool is_message = false);
  void add(rc_comm* comm);
  Told* told_of(Bytes& bytes, rc_comm* comm);
  void keep(rc_status status, rc_request* request, Told* told, bool ends_soon, bool refused);

  void run(Bytes& bytes);
  void start(Bytes& bytes);
  void send_or_receive(Bytes& bytes);
  void begin_message(Bytes& bytes);
  void wait(Bytes& bytes);
  void wait_for(Pending& chosen, double patience, bool nowhere);
  void free(Bytes& bytes);
  void received(Bytes& bytes);
  void split(Bytes& bytes);
  void shrink(Bytes& bytes);
  void ask(Bytes& bytes);
  void abort(Bytes& bytes);
  void create(Bytes& bytes);
  void destroy(Bytes& bytes);
  void simulate(Bytes& bytes);

  const int size_;
  std::atomic<bool> is_good_{true};  // no communicator can have been poisoned
  std::vector<Place> places_;
  std::vector<Pending> requests_;
  Memory memory_;
  std::deque<Told> told_;
  std::mutex mutex_;
  std::vector<rc_request*> of_callbacks_;
};

/// A callback, and what it may do of all that there is.
void done(void* state, rc_request* request, rc_status status) {
  Told& told = *static_cast<Told*>(state);
  HOLDS(++told.times == 1);
  check_failure(status);
  rc_call call = barrier();
  int over = 0;
  rc_request* started = nullptr;
  rc_comm* made = nullptr;
  switch (told.deed) {
    case 1:
      HOLDS(ringcoll_wait(request, -1, &over) == status && over == 1);
      break;
    case 2:
      HOLDS(ringcoll_run(told.comm, &call) != RC_OK);
      HOLDS(ringcoll_comm_split(told.comm, nullptr, 0, nullptr, &made) != RC_OK && !made);
      HOLDS(ringcoll_comm_shrink(told.comm, nullptr, &made) != RC_OK && !made);
      break;
    case 3: {
      std::lock_guard lock(told.player->mutex_);
      if (ringcoll_start(told.comm, &call, &started) == RC_OK)
        told.player->of_callbacks_.push_back(started);
      break;
    }
    case 4:
      told.player->is_good_ = false;
      ringcoll_comm_abort(told.comm, "a callback");
      break;
    case 5:
      ringcoll_request_free(request);
      break;
    default:
      HOLDS(ringcoll_comm_rank(told.comm) >= 0);
  }
}

/// A refused call leaves a communicator as it was.
void Player::check(rc_status status, bool is_message) {
  check_failure(status);
  HOLDS(status == RC_OK || ringcoll_error_rank() < size_);
  if (status != RC_OK && status != RC_INVALID_ARGUMENT && status != RC_TOO_LONG &&
      !(is_message && status == RC_TIMEOUT))
    is_good_ = false;
  if (status != RC_INVALID_ARGUMENT || size_ != 1 || !is_good_) return;
  rc_call call = barrier();
  for (const Place& place : places_) {
    rc_status after = ringcoll_run(place.comm, &call);
    HOLDS(after == RC_OK || !is_good_);
  }
}

void Player::add(rc_comm* comm) {
  HOLDS(comm);
  places_.push_back({comm, ringcoll_comm_rank(comm), ringcoll_comm_size(comm)});
  HOLDS(places_.back().rank >= 0 && places_.back().rank < places_.back().size);
  HOLDS(places_.back().size <= size_);
}

Told* Player::told_of(Bytes& bytes, rc_comm* comm) {
  if (!bytes.rarely(2)) return nullptr;
  Told& told = told_.emplace_back();
  told.player = this;
  told.comm = comm;
  told.deed = bytes.below(8);
  return &told;
}

void Player::keep(rc_status status, rc_request* request, Told* told, bool ends_soon, bool refused) {
  check(status, true);
  if (status != RC_OK) {
    HOLDS(!request);
    HOLDS(!told || told->times == 0);
    return;
  }
  HOLDS(request);
  HOLDS(!refused || size_ > 1 || !is_good_);
  bool frees_itself = told && told->deed == 5;
  if (!frees_itself) requests_.push_back({request, told, ends_soon});
}

void Player::run(Bytes& bytes) {
  Place& at = place(bytes);
  rc_comm* comm = handle(at, bytes);
  Collective asked = collective(bytes, at, memory_);
  asked.call.timeout_s = seconds(bytes, true, size_ == 1);
  if (bytes.rarely(32)) asked.call.done = done;
  Interruption interruption{bytes.below(2)};
  asked.call.interrupted_state = &interruption;
  if (bytes.rarely(4)) asked.call.interrupted = interrupted;
  CallerStruct call(asked.call, bytes);
  rc_status status = ringcoll_run(comm, call.get());
  check(status);
  HOLDS(!call.is_whole() || !asked.must_be_refused || status != RC_OK);
}

void Player::start(Bytes& bytes) {
  Place& at = place(bytes);
  rc_comm* comm = handle(at, bytes);
  Collective asked = collective(bytes, at, memory_);
  asked.call.timeout_s = seconds(bytes, true, size_ == 1);
  // It may be over, with that error, at any time.
  if (asked.call.timeout_s > 0 && asked.call.timeout_s < 1) is_good_ = false;
  Told* told = told_of(bytes, comm);
  if (told) asked.call.done = done;
  asked.call.done_state = told;
  if (bytes.rarely(32)) {  // it is of calls that block
    asked.call.interrupted = interrupted;
    asked.must_be_refused = true;
  }
  CallerStruct call(asked.call, bytes);
  bool nowhere = bytes.rarely(32);
  rc_request* request = reinterpret_cast<rc_request*>(this);
  rc_status status = ringcoll_start(comm, call.get(), nowhere ? nullptr : &request);
  if (nowhere) request = nullptr;
  // An older caller's struct has no `done`, a newer one's has.
  bool has_done = call.get() && call.get()->struct_size >= sizeof(rc_call);
  keep(status, request, has_done ? told : nullptr, true, call.is_whole() && asked.must_be_refused);
}

void Player::send_or_receive(Bytes& bytes) {
  Place& at = place(bytes);
  rc_comm* comm = handle(at, bytes);
  bool receives = bytes.rarely(2);
  Message asked = message(bytes, at, receives, memory_);
  asked.message.timeout_s = seconds(bytes, size_ > 1, false);
  if (bytes.rarely(32)) asked.message.done = done;
  Interruption interruption{bytes.below(2)};
  asked.message.interrupted_state = &interruption;
  if (bytes.rarely(8)) {
    asked.message.interrupted = interrupted;
    asked.message.timeout_s = kInterruptibleSeconds;
  }
  CallerStruct message(asked.message, bytes);
  CallerStruct<rc_message_info> info({}, bytes);
  bool tells = receives && bytes.rarely(2);
  rc_status status = receives ? ringcoll_recv(comm, message.get(), tells ? info.get() : nullptr)
                              : ringcoll_send(comm, message.get());
  check(status, true);
  HOLDS(!message.is_whole() || !asked.must_be_refused || status != RC_OK);
  if (status == RC_OK && tells && info.is_whole())
    HOLDS(info.get()->source >= 0 && info.get()->source < at.size && info.get()->tag >= 0 &&
          info.get()->bytes >= 0 && info.get()->bytes <= asked.message.bytes);
}

void Player::begin_message(Bytes& bytes) {
  Place& at = place(bytes);
  rc_comm* comm = handle(at, bytes);
  bool receives = bytes.rarely(2);
  Message asked = message(bytes, at, receives, memory_);
  double patience = asked.message.timeout_s = seconds(bytes, true, true);
  Told* told = told_of(bytes, comm);
  if (told) asked.message.done = done;
  asked.message.done_state = told;
  CallerStruct message(asked.message, bytes);
  bool nowhere = bytes.rarely(32);
  rc_request* request = reinterpret_cast<rc_request*>(this);
  rc_status status = (receives ? ringcoll_irecv : ringcoll_isend)(comm, message.get(),
                                                                  nowhere ? nullptr : &request);
  if (nowhere) request = nullptr;
  bool ends_soon = patience > 0 && patience <= kBriefSeconds;
  keep(status, request, told, ends_soon, message.is_whole() && asked.must_be_refused);
}

void Player::wait(Bytes& bytes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Pending* chosen = pending(bytes);
  if (!chosen || bytes.rarely(32)) {
    int over = 7;
    check(ringcoll_wait(nullptr, bytes.factor(), &over));
    HOLDS(over == 0);
    return;
  }
  double patience = bytes.one_of({0.0, 0.001, 1e-9, kBriefSeconds});
  if (bytes.rarely(4))
    patience = bytes.one_of({std::numeric_limits<double>::quiet_NaN(), kInfinity, 1e300, -1.0, -0.0,
                             -kInfinity, -1e-300});
  if (!chosen->ends_soon && (patience < 0 || patience > kBriefSeconds)) patience = 0;
  wait_for(*chosen, patience, bytes.rarely(32));
}

void Player::wait_for(Pending& chosen, double patience, bool nowhere) {
  int over = 7;
  rc_status status = ringcoll_wait(chosen.request, patience, nowhere ? nullptr : &over);
  check(status, true);
  HOLDS(!nowhere || status == RC_INVALID_ARGUMENT);
  if (nowhere) return;
  HOLDS(over == 0 || over == 1);
  HOLDS(over == 1 || status == RC_OK || status == RC_INVALID_ARGUMENT);
  if (over == 0) return;
  chosen.ends_soon = true;
  HOLDS(!chosen.told || chosen.told->times == 1);
  int again = 0;
  HOLDS(ringcoll_wait(chosen.request, -1, &again) == status && again == 1);
}

void Player::free(Bytes& bytes) {
  Pending* chosen = pending(bytes);
  if (!chosen || !chosen->ends_soon) return ringcoll_request_free(nullptr);
  Pending over = *chosen;
  *chosen = requests_.back();
  requests_.pop_back();
  ringcoll_request_free(over.request);
  HOLDS(!over.told || over.told->times == 1);
}

void Player::received(Bytes& bytes) {
  Pending* chosen = pending(bytes);
  rc_request* request = chosen && !bytes.rarely(32) ? chosen->request : nullptr;
  CallerStruct<rc_message_info> info({}, bytes);
  rc_status status = ringcoll_received(request, info.get());
  check(status);
  if (status == RC_OK && info.is_whole()) HOLDS(info.get()->source >= -1);
}

void Player::split(Bytes& bytes) {
  Place at = place(bytes);
  rc_comm* comm = handle(at, bytes);
  size_t there = bytes.rarely(4) ? bytes.below(5) : static_cast<size_t>(at.size);
  std::vector<int32_t> ranks(there);
  for (size_t i = 0; i < there; i++)
    ranks[i] = bytes.rarely(4) ? bytes.number(at.size) : static_cast<int32_t>(i) % at.size;
  auto count = static_cast<int32_t>(there);
  if (bytes.rarely(8)) count = std::min(count, bytes.raw<int32_t>());
  bool has_list = !bytes.rarely(32), has_place = !bytes.rarely(32), has_name = bytes.rarely(2);
  std::string name = c_text(bytes);
  rc_comm* sub = nullptr;
  rc_status status =
      ringcoll_comm_split(comm, has_list ? ranks.data() : nullptr, count,
                          has_name ? name.c_str() : nullptr, has_place ? &sub : nullptr);
  check(status);
  HOLDS(has_place || status == RC_INVALID_ARGUMENT);
  HOLDS(status == RC_OK || !sub);
  HOLDS(status != RC_OK || (count > 0) == (sub != nullptr));
  if (sub) add(sub);
}

void Player::shrink(Bytes& bytes) {
  rc_comm* comm = handle(place(bytes), bytes);
  bool has_place = !bytes.rarely(32), has_name = bytes.rarely(2);
  std::string name = c_text(bytes);
  rc_comm* rest = nullptr;
  rc_status status =
      ringcoll_comm_shrink(comm, has_name ? name.c_str() : nullptr, has_place ? &rest : nullptr);
  check(status);
  HOLDS(status == RC_OK || !rest);
  if (status == RC_OK) add(rest);
}

void Player::ask(Bytes& bytes) {
  rc_comm* comm = handle(place(bytes), bytes);
  char before = 0, *json = &before;
  bool nowhere = bytes.rarely(32);
  rc_status status = ringcoll_comm_stats(comm, nowhere ? nullptr : &json);
  check_json(status, json, &before);
  HOLDS(!nowhere || status == RC_INVALID_ARGUMENT);
  HOLDS(ringcoll_comm_rank(comm) < size_ && ringcoll_comm_size(comm) <= size_);
  HOLDS(ringcoll_abi_version() == RINGCOLL_ABI_VERSION && *ringcoll_version());
  HOLDS(ringcoll_abi_revision() == RINGCOLL_ABI_REVISION);
  if (!bytes.rarely(8)) return;
  json = &before;
  status = ringcoll_info(&json);
  check_json(status, json, &before);
  HOLDS(status == RC_OK && ringcoll_info(nullptr) == RC_INVALID_ARGUMENT);
}

void Player::abort(Bytes& bytes) {
  if (!bytes.rarely(4)) return;
  rc_comm* comm = handle(place(bytes), bytes);
  bool has_reason = bytes.rarely(2);
  std::string reason = c_text(bytes);
  is_good_ = false;
  ringcoll_comm_abort(comm, has_reason ? reason.c_str() : nullptr);
}

/// An exchange of one rank, or one that fails: `state` is the size that the options have.
int exchange(void* state, const void* mine, size_t bytes, void* all) {
  if (*static_cast<int32_t*>(state) != 1) return 1;
  std::memcpy(all, mine, bytes);
  return 0;
}

std::string store(Bytes& bytes) {
  static const std::string folder = std::string(std::getenv("TMPDIR")) + "/ringcoll-fuzz-";
  std::string rest = c_text(bytes);
  switch (bytes.below(8)) {
    case 0:
      return "local://" + rest;
    case 1:  // no path that leads out of the folder
      std::erase_if(rest, [](unsigned char letter) { return !std::isalnum(letter); });
      return "file://" + folder + rest;
    case 2:
      return "file:///nonexistent/" + std::to_string(rest.size());
    case 3:
      return "tcp://127.0.0.1:" + rest;
    case 4:
      return "horovod://127.0.0.1:" + rest;
    case 5:
      return "tcp://[::1]:" + rest;
    default:  // no scheme that there is: it could name anything of this machine
      return rest.find("://") == std::string::npos ? rest : "other://" + rest;
  }
}

void Player::create(Bytes& bytes) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.size = bytes.rarely(4) ? bytes.number(3) : 1;
  // To say which of so many have not come takes longer than an input may.
  if (options.size > 64 && options.size <= kMostRanks) options.size %= 64;
  options.rank = bytes.number(1);
  options.timeout_s = seconds(bytes, false, false);
  bool has_store = !bytes.rarely(8), has_name = bytes.rarely(2), nowhere = bytes.rarely(32);
  int32_t size = options.size;
  if (bytes.rarely(4)) {
    options.exchange = exchange;
    options.exchange_state = &size;
  }
  Bytes first(bytes.take(bytes.byte() % 64));
  std::string name = c_text(first), where = store(bytes);
  if (has_name) options.name = name.c_str();
  if (has_store) options.store = where.c_str();
  CallerStruct given(options, bytes);
  rc_comm* comm = nullptr;
  rc_status status = ringcoll_comm_create(given.get(), nowhere ? nullptr : &comm);
  check_failure(status);
  HOLDS((status == RC_OK) == (comm != nullptr));
  HOLDS(options.size <= kMostRanks || status == RC_INVALID_ARGUMENT);
  if (!comm) return;
  char before = 0, *json = &before;
  status = ringcoll_comm_stats(comm, &json);
  check_json(status, json, &before);
  ringcoll_comm_destroy(comm);
}

/// A request of any text, at times inside many brackets.
void Player::simulate(Bytes& bytes) {
  if (!bytes.rarely(4)) return fuzz::simulate(c_text(bytes));
  size_t depth = size_t{1} << bytes.below(18);
  auto name = bytes.one_of<const char*>({"", "collective", "dtype", "levels", "sizes", "algorithm",
                                         "slots", "messages", "combined_bytes_per_us"});
  std::string nested = std::string(depth, '[') + c_text(bytes) + std::string(depth, ']');
  if (*name) nested = std::string("{\"") + name + "\":" + nested + "}";
  fuzz::simulate(nested);
}

/// Of one that was split off, whose requests have ended.
void Player::destroy(Bytes& bytes) {
  ringcoll_comm_destroy(nullptr);
  ringcoll_free(nullptr);
  Place& at = place(bytes);
  if (!requests_.empty() || !told_.empty() || &at == places_.data()) return;
  ringcoll_comm_destroy(at.comm);
  at = places_.back();
  places_.pop_back();
}

void Player::step(size_t what, Bytes bytes) {
  using Step = void (Player::*)(Bytes&);
  static constexpr std::array<Step, 16> kSteps = {
      &Player::run,    &Player::start,  &Player::start,         &Player::wait,
      &Player::free,   &Player::run,    &Player::begin_message, &Player::send_or_receive,
      &Player::split,  &Player::shrink, &Player::ask,           &Player::received,
      &Player::create, &Player::abort,  &Player::simulate,      &Player::destroy};
  (this->*kSteps[what % kSteps.size()])(bytes);
}

/// What may never end by itself ends with its communicator.
void Player::finish(bool destroys_first) {
  for (const Pending& each : requests_) destroys_first |= !each.ends_soon;
  auto destroy_all = [&] {
    for (const Place& place : places_) ringcoll_comm_destroy(place.comm);
  };
  if (destroys_first) destroy_all();
  for (const Pending& each : requests_) {
    ringcoll_request_free(each.request);
    HOLDS(!each.told || each.told->times == 1);
  }
  if (!destroys_first) destroy_all();
  for (rc_request* request : of_callbacks_) ringcoll_request_free(request);
}

struct Program {
  int size = 1;
  std::string store;
  bool destroys_first = false;
  std::span<const uint8_t> steps;
};

/// Each step is what, who, and how many bytes it has of its own: so ranks agree on all others.
void play_rank(const Program& program, int rank) {
  rc_comm_options options{};
  options.struct_size = sizeof options;
  options.rank = rank;
  options.size = program.size;
  options.store = program.store.c_str();
  options.name = "fuzz";
  options.timeout_s = program.size == 1 ? kAloneSeconds : kPeerSeconds;
  rc_comm* world = nullptr;
  rc_status status = ringcoll_comm_create(&options, &world);
  check_failure(status);
  HOLDS(status == RC_OK || program.size > 1);
  if (status != RC_OK) return;  // the other rank came too late
  Player player(world, rank, program.size);
  Bytes bytes(program.steps);
  for (size_t i = 0; i < kMostSteps && !bytes.empty(); i++) {
    uint8_t what = bytes.byte(), who = bytes.byte() % 8;
    Bytes own(bytes.take(bytes.byte()));
    bool only_other = program.size == 2 && who >= 6 && who - 6 != rank;
    if (!only_other) player.step(what, own);
  }
  player.finish(program.destroys_first);
}

/// Costs are given: ranks would measure them for most of the time that an input takes.
bool set_environment() {
  ::setenv("TMPDIR", "/tmp", 0);
  std::string costs = std::string(std::getenv("TMPDIR")) + "/ringcoll-fuzz-costs.json";
  std::ofstream(costs) << R"({"levels": {"host": {"latency_us": 1, "rank_bytes_per_us": 8000,)"
                       << R"( "group_bytes_per_us": 8000}}})";
  ::setenv("RINGCOLL_COSTS", costs.c_str(), 1);
  ::setenv("RINGCOLL_INTERFACE", "lo", 1);
  ::setenv("RINGCOLL_LOG", "error", 1);
  return true;
}

}  // namespace

void play(std::span<const uint8_t> input) {
  static std::atomic<int> programs{0};
  Bytes bytes(input);
  uint8_t head = bytes.byte();
  if (head % 32 == 31) return play_rule(bytes);
  if (head % 8 == 7) return play_delta(bytes);
  if (head % 4 == 3) {
    auto rest = bytes.take(input.size());
    return simulate(std::string(rest.begin(), rest.end()));
  }
  Program program;
  program.size = head % 4 == 2 ? 2 : 1;
  program.destroys_first = head & 4;
  static const bool is_set = set_environment();
  constexpr std::array<const char*, 4> kTransports = {"loopback", "shm", "tcp", "auto"};
  ::setenv("RINGCOLL_TRANSPORT", kTransports[head >> 3 & 3], is_set);
  program.store = "local://fuzz" + std::to_string(programs++);
  program.steps = bytes.take(input.size());
  std::thread other;
  if (program.size == 2) other = std::thread([&] { play_rank(program, 1); });
  play_rank(program, 0);
  if (other.joinable()) other.join();
}

}  // namespace fuzz
