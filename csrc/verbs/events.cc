#include "verbs/events.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "verbs/table.h"

namespace ringcoll::verbs {
namespace {

struct Row {
  ibv_event_type theirs;
  EventKind kind;
  EventScope scope;
};

constexpr Row kRows[] = {
    {IBV_EVENT_PORT_ACTIVE, EventKind::kPortUp, EventScope::kPort},
    {IBV_EVENT_PORT_ERR, EventKind::kPortDown, EventScope::kPort},
    {IBV_EVENT_LID_CHANGE, EventKind::kLidChange, EventScope::kPort},
    {IBV_EVENT_GID_CHANGE, EventKind::kGidChange, EventScope::kPort},
    {IBV_EVENT_PKEY_CHANGE, EventKind::kPartitionChange, EventScope::kPort},
    {IBV_EVENT_SM_CHANGE, EventKind::kSubnetManagerChange, EventScope::kPort},
    {IBV_EVENT_CLIENT_REREGISTER, EventKind::kSubnetManagerChange, EventScope::kPort},
    {IBV_EVENT_DEVICE_FATAL, EventKind::kDeviceFatal, EventScope::kDevice},
    {IBV_EVENT_QP_FATAL, EventKind::kQueuePairFatal, EventScope::kQueuePair},
    {IBV_EVENT_QP_ACCESS_ERR, EventKind::kQueuePairAccess, EventScope::kQueuePair},
    {IBV_EVENT_QP_REQ_ERR, EventKind::kQueuePairRequest, EventScope::kQueuePair},
    {IBV_EVENT_COMM_EST, EventKind::kConnectionEstablished, EventScope::kQueuePair},
    {IBV_EVENT_SQ_DRAINED, EventKind::kOther, EventScope::kQueuePair},
    {IBV_EVENT_PATH_MIG, EventKind::kOther, EventScope::kQueuePair},
    {IBV_EVENT_PATH_MIG_ERR, EventKind::kOther, EventScope::kQueuePair},
    {IBV_EVENT_QP_LAST_WQE_REACHED, EventKind::kOther, EventScope::kQueuePair},
    {IBV_EVENT_CQ_ERR, EventKind::kCompletionQueueLost, EventScope::kOther},
};

struct EventWords {
  const char* name;
  const char* meaning;
};

// In the order of EventKind.
constexpr EventWords kEventWords[] = {
    {"port up", "the link is back"},
    {"port down",
     "the link is lost: check cable, switch and interface; what is in flight is "
     "repeated until the retries are used up"},
    {"device fatal",
     "the device failed and all its connections with it; see the kernel log (dmesg)"},
    {"queue pair fatal", "the connection is lost; the first failed completion says more"},
    {"access violation",
     "the peer tried to reach memory that it was not granted; the connection "
     "is lost"},
    {"invalid request", "the peer sent what this end does not take; the connection is lost"},
    {"completion queue lost", "it overflowed: a defect of ringcoll"},
    {"GID change", "an address of the port's interface came or went"},
    {"LID change", "the subnet manager gave the port another LID; connections to it break"},
    {"partition change", "the subnet manager changed the port's partitions"},
    {"subnet manager change", "nothing to do"},
    {"connection established", "nothing to do"},
    {"other event", "nothing to do"},
};
static_assert(std::size(kEventWords) == static_cast<size_t>(EventKind::kOther) + 1);

const EventWords& words_of(EventKind kind) {
  return kEventWords[std::min(static_cast<size_t>(kind), std::size(kEventWords) - 1)];
}

// The element is read before the event is acknowledged; afterwards it may be gone.
Event translate(const ibv_async_event& theirs, const std::string& device) {
  Event event{.port_id = {.device = device}};
  auto row = std::ranges::find(kRows, theirs.event_type, &Row::theirs);
  if (row == std::end(kRows)) return event;
  event.kind = row->kind;
  event.scope = row->scope;
  if (event.scope == EventScope::kPort) event.port = event.port_id.port = theirs.element.port_num;
  if (event.scope == EventScope::kQueuePair && theirs.element.qp)
    event.qp_num = theirs.element.qp->qp_num;
  return event;
}

}  // namespace

const char* name_of(EventKind kind) { return words_of(kind).name; }

std::string Event::text() const {
  std::string whom =
      scope == EventScope::kQueuePair ? fmt::format(" of queue pair {:#x}", qp_num) : "";
  return fmt::format("{}{} [{}]: {}", name_of(kind), whom, port_id.text(), words_of(kind).meaning);
}

EventReader::EventReader(const Context& context) : context_(context) {
  int flags = ::fcntl(fd(), F_GETFL);
  check_not_negative(flags < 0 ? flags : ::fcntl(fd(), F_SETFL, flags | O_NONBLOCK),
                     "fcntl of the event descriptor", context.port_id());
}

int EventReader::fd() const { return context_.get()->async_fd; }

std::optional<Event> EventReader::next() {
  const Table& calls = context_.table();
  ibv_async_event theirs{};
  if (calls.get_async_event(context_.get(), &theirs) != 0) {
    if (errno != EAGAIN && errno != EINTR) fail("ibv_get_async_event", errno, context_.port_id());
    return {};
  }
  Event event = translate(theirs, context_.device());
  calls.ack_async_event(&theirs);
  return event;
}

EventThread::EventThread(const Context& context, std::function<void(const Event&)> handle)
    : reader_(context), handle_(std::move(handle)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  check(static_cast<bool>(stop_), Code::kTransport, "{}", errno_text("eventfd", errno));
  thread_ = start_thread("ringcoll-verbs", [this] { run_on_thread(); });
}

EventThread::~EventThread() {
  uint64_t one = 1;
  if (::write(stop_.get(), &one, sizeof one) != sizeof one)
    log_warning("{}", errno_text("write to an eventfd", errno));
  thread_.join();
}

void EventThread::run_on_thread() {
  std::array<pollfd, 2> watched = {{{stop_.get(), POLLIN, 0}, {reader_.fd(), POLLIN, 0}}};
  try {
    while (true) {
      ::poll(watched.data(), watched.size(), -1);
      if (watched[0].revents) return;
      while (auto event = reader_.next()) handle_(*event);
    }
  } catch (const Error& error) {
    // The device is gone; its queue pairs fail by themselves.
    log_warning("events of {} are not watched any more: {}", reader_.device(), error.what());
  }
}

}  // namespace ringcoll::verbs
