// The C ABI of communicators, calls and messages, and its handles.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "base/threads.h"
#include "bootstrap/exchange.h"
#include "coll/simulate.h"
#include "engine/caller_struct.h"
#include "engine/handles.h"
#include "engine/messages.h"
#include "store/store.h"
#include "transport/knobs.h"

using namespace ringcoll;

namespace {

Request& request_of(const rc_request* request) {
  check(request != nullptr, Code::kInvalidArgument, "request is NULL");
  check(!is_inherited(request->born), Code::kInvalidArgument,
        "this process was forked while the call or message was in flight: it ends in the parent");
  return *request->request;
}

/// `refused`: why this rank cannot start. Opening the store may set it.
std::unique_ptr<Exchange> exchange_for(const rc_comm_options& options, const Config& config,
                                       const std::string& name, std::optional<Error>* refused) {
  if (options.exchange)
    return make_function_exchange(
        [f = options.exchange, state = options.exchange_state](
            const void* mine, size_t bytes, void* all) { return f(state, mine, bytes, all) == 0; },
        options.rank, options.size);
  check(options.store && *options.store, Code::kInvalidArgument,
        "no way to find the other ranks: give a store (tcp://host:port, file:///directory) or an "
        "exchange function");
  // A rank that comes only to tell why it cannot start waits no longer than kTellingSeconds.
  Deadline deadline(
      seconds(*refused ? std::min(config.timeout_s, kTellingSeconds) : config.timeout_s));
  auto store = open_store(options.store, config.secret, options.rank, options.size, deadline);
  if (!*refused) *refused = store->unable();
  return make_store_exchange(std::move(store), name, options.rank, options.size);
}

std::unique_ptr<Engine> create(const rc_comm_options& options) {
  check(options.size > 0 && options.rank >= 0 && options.rank < options.size,
        Code::kInvalidArgument, "rank {} of {} is not possible: ranks are 0 to size-1",
        options.rank, options.size);
  check(options.size <= kMostRanks, Code::kInvalidArgument, "{} ranks: at most {} can meet",
        options.size, kMostRanks);
  check(options.timeout_s >= 0, Code::kInvalidArgument,
        "timeout_s is {}: it is a number of seconds, or 0 for RINGCOLL_TIMEOUT_S",
        options.timeout_s);
  std::optional<Error> refused;
  Config config = read_config({}, &refused);
  if (options.timeout_s > 0) config.timeout_s = options.timeout_s;
  set_log_level_from(config);
  std::string name = options.name ? options.name : "world";
  if (options.rank == 0 && name == "world")
    for (const std::string& warning : all_knobs().unknown(environment_names()))
      log_warning("{}", warning);
  std::unique_ptr<Exchange> exchange;
  try {
    exchange = exchange_for(options, config, name, &refused);
  } catch (const Error&) {
    if (!refused) throw;  // else there is no exchange to tell others by, and `refused` is the cause
  }
  if (refused) {
    if (exchange) refused = Mesh::refuse(*exchange, config, *refused);
    throw Error(*refused);
  }
  return std::make_unique<Engine>(config, name, *exchange);
}

void check_info(const rc_message_info* info) {
  if (info) check_size(info->struct_size, history_of(info));
}

/// Stores what was received, as far as the caller's struct goes.
void tell(const Received& received, rc_message_info* info) {
  if (!info) return;
  rc_message_info all{.struct_size = info->struct_size,
                      .source = received.source,
                      .tag = received.tag,
                      .bytes = static_cast<int64_t>(received.bytes)};
  std::memcpy(info, &all, std::min(info->struct_size, sizeof all));
}

/// Makes the handle of a communicator that other ranks may already use. If it cannot, they learn
/// why.
rc_comm* handle_of(std::unique_ptr<Engine> engine) {
  try {
    return new rc_comm{.engine = std::move(engine)};
  } catch (const std::exception& error) {
    engine->comm().poison(as_error(error));
    throw;
  }
}

void start(Engine& engine, const rc_call& call, rc_request** request) {
  auto made = std::make_unique<rc_request>();
  auto started = std::make_shared<CallRequest>(call, engine, done_of(call, made.get()));
  made->request = started;
  hand_out(std::move(made), request, [&] { engine.start(std::move(started)); });
}

rc_status start_message(rc_comm* comm, const rc_message* message, bool receives,
                        rc_request** request) {
  return guarded([&] {
    begin_with_nothing(request, "request");
    Engine& engine = engine_of(comm);
    rc_message copy = from_caller(message);
    check(!copy.interrupted, Code::kInvalidArgument,
          "interrupted is for ringcoll_send and ringcoll_recv: the others return at once, and "
          "ringcoll_wait takes a limit");
    auto made = std::make_unique<rc_request>();
    auto started = std::make_shared<MessageRequest>(transfer_of(copy, receives, engine.comm()),
                                                    engine, done_of(copy, made.get()));
    made->request = started;
    hand_out(std::move(made), request, [&] { started->start(); });
  });
}

void run_message(rc_comm* comm, const rc_message* message, bool receives, rc_message_info* info) {
  Engine& engine = engine_of(comm);
  rc_message copy = from_caller(message);
  check(!copy.done, Code::kInvalidArgument,
        "done is for ringcoll_isend and ringcoll_irecv: what is waited for has ended when the "
        "function returns");
  Transfer transfer = transfer_of(copy, receives, engine.comm());
  struct Teller {  // also on failure: a message that is too long is reported
    const Transfer& transfer;
    rc_message_info* info;
    ~Teller() { tell(transfer.received, info); }
  } teller{transfer, info};
  run(engine, transfer, copy);
}

}  // namespace

extern "C" {

const char* ringcoll_version(void) { return RINGCOLL_VERSION; }
int ringcoll_abi_version(void) { return RINGCOLL_ABI_VERSION; }
int ringcoll_abi_revision(void) { return RINGCOLL_ABI_REVISION; }
const char* ringcoll_error_message(void) { return last_error().message.c_str(); }
int ringcoll_error_rank(void) { return last_error().rank; }

rc_status ringcoll_comm_create(const rc_comm_options* options, rc_comm** comm) {
  return guarded([&] {
    begin_with_nothing(comm, "comm");
    *comm = new rc_comm{.engine = create(from_caller(options))};
  });
}

rc_status ringcoll_comm_split(rc_comm* comm, const int32_t* ranks, int32_t count, const char* name,
                              rc_comm** sub) {
  return guarded([&] {
    begin_with_nothing(sub, "sub");
    check(count >= 0 && (ranks || count == 0), Code::kInvalidArgument,
          "ranks is NULL, or count is negative");
    auto engine = engine_of(comm).split({ranks, static_cast<size_t>(count)}, name ? name : "split");
    if (engine) *sub = handle_of(std::move(engine));
  });
}

rc_status ringcoll_comm_shrink(rc_comm* comm, const char* name, rc_comm** rest) {
  return guarded([&] {
    begin_with_nothing(rest, "rest");
    *rest = handle_of(engine_of(comm).shrink(name ? name : "shrink"));
  });
}

// A forked child frees nothing: locks that other threads held at the fork stay held. In a callback,
// the library's thread can neither end nor be waited for, so another thread destroys the
// communicator.
void ringcoll_comm_destroy(rc_comm* comm) {
  if (!comm || is_inherited(comm->born)) return;
  auto destroy = [comm] {
    comm->engine->close();  // callbacks may still use the handle
    delete comm;
  };
  if (!comm->engine->is_calling_back()) return destroy();
  try {
    start_thread("ringcoll-close", destroy).detach();
  } catch (const std::exception& error) {
    Error why = as_error(error).within("destroying a communicator in its callback");
    log_warning("{}. It is aborted on all ranks, and its memory kept", why.what());
    comm->engine->comm().poison(why);
  }
}

void ringcoll_comm_abort(rc_comm* comm, const char* reason) {
  if (!comm || is_inherited(comm->born)) return;
  comm->engine->abort(reason ? reason : "no reason given");
}

int ringcoll_comm_rank(const rc_comm* comm) { return comm ? comm->engine->comm().rank() : kNobody; }
int ringcoll_comm_size(const rc_comm* comm) { return comm ? comm->engine->comm().size() : 0; }

rc_status ringcoll_comm_stats(rc_comm* comm, char** json) {
  return guarded([&] {
    check(json != nullptr, Code::kInvalidArgument, "json is NULL");
    *json = copy_of(stats_json(engine_of(comm)));
  });
}

rc_status ringcoll_run(rc_comm* comm, const rc_call* call) {
  return guarded([&] {
    rc_call copy = from_caller(call);
    check(!copy.done, Code::kInvalidArgument,
          "done is for ringcoll_start: a call of ringcoll_run has ended when it returns");
    engine_of(comm).run(copy);
  });
}

rc_status ringcoll_start(rc_comm* comm, const rc_call* call, rc_request** request) {
  return guarded([&] {
    begin_with_nothing(request, "request");
    rc_call copy = from_caller(call);
    check(
        !copy.interrupted, Code::kInvalidArgument,
        "interrupted is for ringcoll_run: ringcoll_start returns at once, and ringcoll_wait takes "
        "a limit");
    start(engine_of(comm), copy, request);
  });
}

rc_status ringcoll_send(rc_comm* comm, const rc_message* message) {
  return guarded([&] { run_message(comm, message, false, nullptr); });
}

rc_status ringcoll_recv(rc_comm* comm, const rc_message* message, rc_message_info* info) {
  return guarded([&] {
    check_info(info);
    run_message(comm, message, true, info);
  });
}

rc_status ringcoll_isend(rc_comm* comm, const rc_message* message, rc_request** request) {
  return start_message(comm, message, false, request);
}

rc_status ringcoll_irecv(rc_comm* comm, const rc_message* message, rc_request** request) {
  return start_message(comm, message, true, request);
}

rc_status ringcoll_received(rc_request* request, rc_message_info* info) {
  return guarded([&] {
    check(request && info, Code::kInvalidArgument, "request or info is NULL");
    check_info(info);
    check(!is_inherited(request->born), Code::kInvalidArgument,
          "this process was forked while the message was under way: it ends in the parent");
    auto* message = dynamic_cast<MessageRequest*>(request->request.get());
    check(message != nullptr, Code::kInvalidArgument, "the request is no receive but a call");
    tell(message->received(), info);
  });
}

rc_status ringcoll_wait(rc_request* request, double timeout_s, int* done) {
  return guarded([&] {
    check(done != nullptr, Code::kInvalidArgument, "done is NULL");
    *done = request && is_inherited(request->born);  // nothing to wait for here
    Request& awaited = request_of(request);
    check(!std::isnan(timeout_s), Code::kInvalidArgument,
          "timeout_s is NaN: it is a number of seconds, or negative for no limit");
    check(timeout_s == 0 || awaited.may_wait(), Code::kInvalidArgument,
          "a completion callback waits for a call or a message of its own communicator, which "
          "cannot end before the callback has returned: give that one a callback of its own");
    *done = 1;  // also if wait() throws, which means that the request has ended
    *done = awaited.wait(timeout_s);
  });
}

void ringcoll_request_free(rc_request* request) {
  if (!request || is_inherited(request->born)) return;
  if (!request->request->may_wait())
    return log_warning(
        "a completion callback frees a request of its own communicator that has not ended: it is "
        "left as it is, for only the caller can wait for it");
  guarded([&] { request->request->wait(-1); });
  delete request;
}

rc_status ringcoll_info(char** json) {
  return guarded([&] {
    check(json != nullptr, Code::kInvalidArgument, "json is NULL");
    *json = copy_of(info_json());
  });
}

rc_status ringcoll_simulate(const char* request, char** json) {
  return guarded([&] {
    check(request && json, Code::kInvalidArgument, "request or json is NULL");
    *json = copy_of(simulate_json(request));
  });
}

void ringcoll_free(void* pointer) { std::free(pointer); }

}  // extern "C"
