#include "transport/verbs/endpoint.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ringcoll::rdma {
namespace {

// Writes that may be posted and not yet known to be complete. This is twice what the window, the
// places and the credits can ask for, so the queue is full only when the link does not move.
constexpr uint32_t kSendRequests = 256;
constexpr uint64_t kSignalEvery = 16;
constexpr uint32_t kInlineBytes = 128;
constexpr size_t kBatch = 16;

// The number nearest to `near` whose lower bits are `low`.
uint64_t number_near(uint64_t near, uint32_t low) {
  uint32_t ahead = (low - static_cast<uint32_t>(near)) & kNumberMask;
  auto distance = static_cast<int64_t>(ahead);
  if (ahead > kNumberMask / 2) distance -= int64_t{kNumberMask} + 1;
  return near + static_cast<uint64_t>(distance);
}

uint32_t random_psn() {
  uint32_t psn = 0;
  check(::getrandom(&psn, sizeof psn, 0) == sizeof psn, Code::kTransport,
        "making a random number for an RDMA link: {}", errno_text("getrandom", errno));
  return psn & 0xffffff;
}

}  // namespace

PortUse::PortUse(OpenPort& port, std::span<std::byte> extent)
    : open(port), channel(port.context), landing(port.domain) {
  if (!extent.empty())
    extent_region =
        verbs::MemoryRegion(port.domain, extent.data(), extent.size(), verbs::Access::kRemoteWrite);
}

VerbsEndpoint::VerbsEndpoint(Rank rank, Rank peer, Shared& shared, PortUse& port)
    : rank_(rank),
      peer_(peer),
      shared_(shared),
      settings_(shared.settings),
      port_(port),
      usable_(port.open.port()),
      layout_(settings_.slot_bytes),
      sent_layout_(static_cast<uint32_t>(sizeof(Header)) + settings_.copied_bytes),
      inbox_(port.open.domain, layout_.bytes(), verbs::Access::kRemoteWrite),
      outbox_(port.open.domain, sent_layout_.bytes(), verbs::Access::kLocalRead),
      queue_(port.open.context, kSendRequests + kReceiveRequests, &port.channel),
      pair_(port.open.domain, queue_, queue_,
            {.send_requests = kSendRequests,
             .receive_requests = kReceiveRequests,
             .send_pieces = 2,
             .inline_bytes = std::min(kInlineBytes, usable_.limits.inline_bytes)}),
      psn_(random_psn()) {
  shared_.endpoints.push_back(this);
}

VerbsEndpoint::~VerbsEndpoint() { std::erase(shared_.endpoints, this); }

std::string VerbsEndpoint::link() const {
  return fmt::format("[rank {} -> {}, verbs {}]", rank_, peer_, usable_.port_id().text());
}

void VerbsEndpoint::corrupt(const std::string& what) const {
  throw Error(Code::kTransport,
              fmt::format("the peer has written unexpected data: {} {}; do all ranks run the same "
                          "version of ringcoll?",
                          what, link()),
              peer_);
}

void VerbsEndpoint::throw_if_failed() const {
  if (failed_) [[unlikely]]
    throw *failed_;
  if (port_.open.failed()) [[unlikely]]
    throw Error(Code::kTransport, fmt::format("{} {}", port_.open.failure(), link()), peer_);
}

// ---- Posting ----

// The region that holds all of the memory; null if it is not registered.
const verbs::MemoryRegion* VerbsEndpoint::region_of(const void* data, uint64_t bytes,
                                                    bool written) const {
  if (!data) return nullptr;
  if (lies_in(shared_.extent, data, bytes)) return &port_.extent_region;
  return shared_.lent.find(port_.open.domain, data, bytes, written);
}

bool VerbsEndpoint::room(uint64_t writes) const {
  return posted_ - reclaimed_ + writes <= kSendRequests;
}

uint64_t VerbsEndpoint::post(verbs::Write write, bool signaled) {
  write.id = posted_ + 1;
  write.signaled = signaled || write.id % kSignalEvery == 0;
  check(pair_.try_write(write), Code::kTransport, "the send queue is full with {} of {} writes {}",
        posted_ - reclaimed_, kSendRequests, link());
  return ++posted_;
}

uint64_t VerbsEndpoint::writes_for(uint64_t bytes) const {
  uint64_t most = usable_.port.max_message_bytes;
  return (bytes + most - 1) / most;
}

// Posts an immediate alone, which needs no memory at the peer.
uint64_t VerbsEndpoint::post_word(Kind kind, uint64_t number, bool signaled) {
  return post({.remote_address = theirs_.inbox,
               .rkey = theirs_.rkey,
               .immediate = immediate_of(kind, number)},
              signaled);
}

// Posts to the message's slot: the header, `copied` bytes that stand behind it already, and the
// slice `gathered`.
uint64_t VerbsEndpoint::post_message(const Header& header, uint64_t copied,
                                     const verbs::Slice& gathered, bool signaled) {
  std::byte* slot = outbox_.data() + sent_layout_.slot(header.number);
  std::memcpy(slot, &header, sizeof header);
  auto bytes = static_cast<uint32_t>(sizeof header + copied);
  std::array<verbs::Slice, 2> slices = {verbs::slice_of(outbox_.region(), slot, bytes), gathered};
  bool gathers = gathered.bytes > 0;
  return post({.from = std::span(slices).first(gathers ? 2 : 1),
               .remote_address = theirs_.inbox + layout_.slot(header.number),
               .rkey = theirs_.rkey,
               .immediate = immediate_of(Kind::kMessage, header.number),
               .inlined = !gathers && bytes <= pair_.limits().inline_bytes},
              signaled);
}

// Posts a long payload to the place that the peer has named, in writes that the port can carry.
void VerbsEndpoint::post_payload(const std::byte* data, uint64_t bytes, const Place& place) {
  uint64_t most = usable_.port.max_message_bytes;
  const verbs::MemoryRegion& region = *region_of(data, bytes, false);
  for (uint64_t at = 0; at < bytes; at += most) {
    auto length = static_cast<uint32_t>(std::min(most, bytes - at));
    verbs::Slice slice = verbs::slice_of(region, data + at, length);
    post({.from = std::span(&slice, 1), .remote_address = place.address + at, .rkey = place.rkey},
         false);
  }
}

// ---- Sending ----

uint64_t VerbsEndpoint::try_send(const Envelope& envelope, const void* data, uint64_t bytes) {
  throw_if_failed();
  uint64_t number = sent_ + 1;
  bool here = bytes <= layout_.most_here();
  uint64_t writes = 1 + (here ? 0 : writes_for(bytes));
  if (number > peer_released_ + kWindow || !room(writes)) {
    progress();
    if (number > peer_released_ + kWindow || !room(writes)) {
      wants_other_ = true;
      return 0;
    }
  }
  const auto* from = static_cast<const std::byte*>(data);
  invariant(bytes <= settings_.copied_bytes || region_of(data, bytes, false),
            "a message of {} bytes is not registered and too long to be copied {}", bytes, link());
  Header header{.number = number, .bytes = bytes, .envelope = envelope};
  if (here)
    send_here(header, from);
  else
    send_long(header, from);
  sent_ = number;
  return number;
}

void VerbsEndpoint::send_here(Header header, const std::byte* data) {
  header.form = Header::kHere;
  const verbs::MemoryRegion* gather =
      header.bytes > kCopyBytes ? region_of(data, header.bytes, false) : nullptr;
  verbs::Slice slice;
  if (gather)
    slice = verbs::slice_of(*gather, data, static_cast<uint32_t>(header.bytes));
  else if (header.bytes > 0)
    std::memcpy(outbox_.data() + sent_layout_.slot(header.number) + sizeof header, data,
                header.bytes);
  last_needed_ = post_message(header, gather ? 0 : header.bytes, slice, gather != nullptr);
  out(header.number) = {gather ? last_needed_ : 0, false};
}

void VerbsEndpoint::send_long(Header header, const std::byte* data) {
  poll_queue();  // the place may have come
  bool placed = named(header.number, header.bytes);
  header.form = placed ? Header::kPlaced : Header::kLater;
  if (placed) post_payload(data, header.bytes, named_[header.number % kWindow]);
  // The header is posted behind the payload, and so completes after it.
  last_needed_ = post_message(header, 0, {}, placed);
  out(header.number) = {last_needed_, !placed};
  if (!placed) waiting_.push_back({header.number, data, header.bytes});
}

bool VerbsEndpoint::named(uint64_t number, uint64_t bytes) const {
  const Place& place = named_[number % kWindow];
  return place.number == number && place.bytes >= bytes;
}

bool VerbsEndpoint::send_waiting() {
  bool any = false;
  while (!waiting_.empty()) {
    const Waiting& message = waiting_.front();
    bool can = named(message.number, message.bytes) && room(1 + writes_for(message.bytes));
    if (!can) break;
    post_payload(message.data, message.bytes, named_[message.number % kWindow]);
    last_needed_ = post_word(Kind::kDone, message.number, true);
    out(message.number) = {last_needed_, false};
    waiting_.pop_front();
    any = true;
  }
  return any;
}

uint64_t VerbsEndpoint::completed() {
  progress();
  while (completed_ < sent_) {
    const Out& next = out(completed_ + 1);
    if (next.waits || next.last_write > reclaimed_) break;
    completed_++;
  }
  wants_other_ |= completed_ < sent_;
  return completed_;
}

// ---- Receiving ----

// Asks the peer to write message `number` to `place`, or, if that is not registered, to a buffer of
// the transport.
void VerbsEndpoint::name_place(uint64_t number, void* place, uint64_t bytes) {
  In& message = in(number);
  if (message.buffer) port_.landing.give_back(std::move(message.buffer));
  message.place = {.number = number, .bytes = bytes};
  if (const verbs::MemoryRegion* region = region_of(place, bytes, true)) {
    message.place.address = reinterpret_cast<uintptr_t>(place);
    message.place.rkey = region->rkey();
  } else {
    message.buffer = port_.landing.take(bytes);
    message.place.address = message.buffer->region().address();
    message.place.rkey = message.buffer->region().rkey();
  }
  owed_places_ += !std::exchange(message.owed, true);
  tell_places();
}

bool VerbsEndpoint::tell_places() {
  bool any = false;
  for (uint64_t n = received_ + 1; owed_places_ > 0 && n <= released_ + kWindow; n++) {
    if (!in(n).owed) continue;
    if (!room(1)) break;
    std::byte* entry = outbox_.data() + sent_layout_.place(n);
    std::memcpy(entry, &in(n).place, sizeof(Place));
    verbs::Slice slice = verbs::slice_of(outbox_.region(), entry, sizeof(Place));
    last_needed_ = post({.from = std::span(&slice, 1),
                         .remote_address = theirs_.inbox + layout_.place(n),
                         .rkey = theirs_.rkey,
                         .immediate = immediate_of(Kind::kPlace, n),
                         .inlined = sizeof(Place) <= pair_.limits().inline_bytes},
                        false);
    in(n).owed = false;
    owed_places_--;
    any = true;
  }
  return any;
}

void VerbsEndpoint::expect(void* place, uint64_t capacity) {
  uint64_t number = expected_ = std::max(expected_, received_) + 1;
  if (capacity <= layout_.most_here() || number > released_ + kWindow) return;
  throw_if_failed();
  if (!in(number).done && in(number).place.bytes == 0) name_place(number, place, capacity);
}

bool VerbsEndpoint::try_peek(Envelope* envelope, uint64_t* bytes) {
  progress();
  const In& message = in(received_ + 1);
  wants_message_ |= !message.has_header;
  if (!message.has_header) return false;
  *envelope = message.header.envelope;
  *bytes = message.header.bytes;
  return true;
}

bool VerbsEndpoint::try_recv(void* place, uint64_t capacity, View* view) {
  progress();
  uint64_t number = received_ + 1;
  In& message = in(number);
  wants_message_ |= !message.has_header || !message.done;
  if (!message.has_header) return false;
  uint64_t bytes = message.header.bytes;
  bool here = message.header.form == Header::kHere;
  if (!message.done) {
    if (message.place.bytes < bytes) name_place(number, bytes <= capacity ? place : nullptr, bytes);
    return false;
  }
  const std::byte* data = here ? inbox_.data() + layout_.slot(number) + sizeof(Header)
                               : reinterpret_cast<const std::byte*>(message.place.address);
  view->data = bytes <= capacity ? data : nullptr;
  view->bytes = bytes;
  view->envelope = message.header.envelope;
  received_ = number;
  return true;
}

void VerbsEndpoint::release() {
  invariant(released_ < received_, "release() without a view {}", link());
  In& message = in(++released_);
  if (message.buffer) port_.landing.give_back(std::move(message.buffer));
  message = {};
  owes_credit_ |= released_ - told_ >= kOwedReleases;
  tell_credit();
}

bool VerbsEndpoint::tell_credit() {
  if (!owes_credit_ || !room(1)) return false;
  post_word(Kind::kReleased, released_, false);
  told_ = released_;
  owes_credit_ = false;
  return true;
}

// ---- Polling and waiting ----

bool VerbsEndpoint::progress() {
  throw_if_failed();
  bool any = false;
  if (socket_) [[unlikely]]
    any = setup_has_ended();
  any |= poll_queue();
  any |= tell_places();
  any |= tell_credit();
  any |= send_waiting();
  return any;
}

bool VerbsEndpoint::poll_queue() {
  std::array<verbs::Completion, kBatch> batch;
  size_t count = queue_.poll(batch), immediates = 0;
  for (const verbs::Completion& completion : std::span(batch).first(count)) {
    if (!completion.ok()) fail(completion);
    if (completion.operation() != verbs::Operation::kReceiveImmediate) {
      reclaimed_ = completion.id();
      continue;
    }
    immediates++;
    take_immediate(completion.immediate());
  }
  if (immediates > 0) pair_.try_receive(0, immediates);
  return count > 0;
}

void VerbsEndpoint::fail(const verbs::Completion& completion) {
  const char* what = completion.id() == 0 ? "receiving from" : "a write to";
  failed_ = Error(Code::kTransport,
                  fmt::format("{} rank {} failed: {} {}", what, peer_,
                              completion.text(settings_.retry_seconds), link()),
                  peer_);
  throw *failed_;
}

void VerbsEndpoint::take_immediate(uint32_t immediate) {
  uint32_t low = immediate & kNumberMask;
  switch (static_cast<Kind>(immediate >> kNumberBits)) {
    case Kind::kMessage:
      return take_header(number_near(arrived_, low));
    case Kind::kPlace:
      return take_place(number_near(sent_, low));
    case Kind::kDone:
      return take_done(number_near(received_, low));
    case Kind::kReleased:
      return take_credit(number_near(peer_released_, low));
  }
  corrupt(fmt::format("the word {:#x}", immediate));
}

void VerbsEndpoint::take_header(uint64_t number) {
  Header header;
  std::memcpy(&header, inbox_.data() + layout_.slot(number), sizeof header);
  if (number != arrived_ + 1 || header.number != number || number > released_ + kWindow)
    corrupt(fmt::format("message {} ({}) instead of {}", number, header.number, arrived_ + 1));
  bool here = header.form == Header::kHere, placed = header.form == Header::kPlaced;
  bool fits = here     ? header.bytes <= layout_.most_here()
              : placed ? header.bytes <= in(number).place.bytes
                       : header.form == Header::kLater && header.bytes <= settings_.most_bytes;
  if (!fits)
    corrupt(fmt::format("message {} of {} bytes, form {}", number, header.bytes, header.form));
  if (number == 1 && told_proven_) socket_.reset();  // a peer that sends has proven the path
  arrived_ = number;
  in(number).header = header;
  in(number).has_header = true;
  in(number).done = here || placed;
}

void VerbsEndpoint::take_place(uint64_t number) {
  Place place;
  std::memcpy(&place, inbox_.data() + layout_.place(number), sizeof place);
  if (place.number != number || number > peer_released_ + 2 * kWindow)
    corrupt(fmt::format("the memory for message {} ({})", number, place.number));
  named_[number % kWindow] = place;
}

void VerbsEndpoint::take_done(uint64_t number) {
  bool due = number > received_ && number <= arrived_;
  In& message = in(number);
  if (!due || message.done || message.owed || message.place.bytes < message.header.bytes)
    corrupt(fmt::format("the end of message {}, which is not due", number));
  message.done = true;
}

void VerbsEndpoint::take_credit(uint64_t number) {
  if (number < peer_released_ || number > sent_)
    corrupt(fmt::format("{} messages released of {} sent", number, sent_));
  peer_released_ = number;
}

// Whether the caller has something to do about the next message.
bool VerbsEndpoint::next_is_due() {
  const In& message = in(received_ + 1);
  return message.has_header && (message.done || message.place.bytes < message.header.bytes);
}

bool VerbsEndpoint::may_be_ready(std::vector<pollfd>* sleep) {
  if (told_of_end_ || !(wants_message_ || wants_other_ || busy())) return false;
  try {
    if (sleep) queue_.arm();  // completions that are there already raise no event
    if (progress() || (wants_message_ && next_is_due())) return true;
  } catch (const Error&) {  // using the link throws it again
    return told_of_end_ = true;
  }
  if (sleep && socket_) sleep->push_back({socket_.get(), POLLIN, 0});
  return false;
}

void VerbsEndpoint::stop() noexcept {
  pair_.to_error();
  if (!failed_)
    failed_ = Error(Code::kTransport, fmt::format("the link was given up {}", link()), peer_);
}

// Destroying the queue pair would stop writes under way that the peer still needs.
bool VerbsEndpoint::drained() {
  poll_queue();
  bool is_set_up = setup_has_ended();
  if (is_set_up && reclaimed_ >= last_needed_) return true;
  wants_other_ = true;
  // The last needed write may be unsignaled. A signaled one behind it completes after it.
  if (is_set_up && last_asked_ < last_needed_ && room(1))
    last_asked_ = post({.remote_address = theirs_.inbox, .rkey = theirs_.rkey}, true);
  return false;
}

}  // namespace ringcoll::rdma
