#include "table/shard.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "base/log.h"
#include "reduce/reduce.h"
#include "rules/float_environment.h"
#include "table/guard.h"

namespace ringcoll {
namespace {

Range checked(const TableSpec& spec, Range range) {
  check(
      spec.is_sparse || (range.first >= 0 && range.count >= 0 && range.first <= spec.row_count() &&
                         range.count <= spec.row_count() - range.first),
      Code::kInvalidArgument, "table {}: a shard of rows {} to {}: the table has {}", spec.name,
      range.first, range.end() - 1, spec.is_sparse ? 0 : spec.row_count());
  return range;
}

/// Throws unless rows of the table take pushes of this type and weight.
void check_push(const TableSpec& spec, const Rule& rule, DataType dtype, double weight) {
  try {
    rule.check_push(spec.dtype, dtype, weight);
  } catch (const Error& error) {
    throw error.within("table " + spec.name);
  }
}

TableSpec with_rule(TableSpec spec, const Rule& rule) {
  check_push(spec, rule, spec.dtype, 1);
  spec.rule = rule;
  return spec;
}

/// Null unless the rule is a custom one. `saved` is what another one has saved, or empty.
std::unique_ptr<CustomRule> made(const TableSpec& spec, const Rule& rule,
                                 const std::string& saved = "") {
  const rules::Custom* custom = rule.custom();
  if (!custom) return nullptr;
  try {
    return make_custom_rule(custom->maker, saved.empty() ? custom->data : saved);
  } catch (const Error& error) {
    throw error.within("table " + spec.name);
  }
}

/// Calls visit(contributions to a row) for each row of a step.
template <typename Contributions, typename Visit>
void each_row(const Contributions& step, Visit&& visit) {
  for (size_t first = 0, end = 0; first < step.size(); first = end) {
    while (end < step.size() && step[end].id == step[first].id) end++;
    visit(std::span(step).subspan(first, end - first));
  }
}

}  // namespace

Shard::Shard(const TableSpec& spec, Range range, std::pmr::memory_resource* memory) try
    : spec_(spec),
      clocks_(spec.name, spec.staleness, spec.quorum),
      rows_(spec_, checked(spec, range), memory),
      custom_(made(spec, spec.rule)) {
  rows_.make_all();
} catch (const std::bad_alloc&) {
  throw no_memory(spec);
}

Shard::Shard(const TableSpec& spec, Range range, std::pmr::memory_resource* memory,
             const Snapshot& from) try
    : spec_(with_rule(spec, from.rule)),
      clocks_(spec.name, spec.staleness, spec.quorum),
      rows_(spec_, checked(spec, range), memory),
      custom_(made(spec, from.rule, from.custom)) {
  check_snapshot(from, range);
  restore(from);
} catch (const std::bad_alloc&) {
  throw no_memory(spec);
}

// ---- pushes

void Shard::check_ids(std::span<const int64_t> ids) const {
  if (spec_.is_sparse) return;
  for (const int64_t id : ids)
    check(rows_.find(id).has_value(), Code::kInvalidArgument,
          "table {}: row {} is not here: the table has rows 0 to {}, and this shard {} of them",
          spec_.name, id, spec_.row_count() - 1, rows_.size());
}

void Shard::check_bytes(std::span<const int64_t> ids, DataType dtype, size_t bytes) const {
  size_t left = bytes;
  bool fits = true;
  for (const int64_t id : ids) {
    const size_t row = static_cast<size_t>(spec_.elements(id)) * size_of(dtype);
    fits = row <= left;
    if (!fits) break;
    left -= row;
  }
  check(fits && left == 0, Code::kInvalidArgument,
        "table {}: {} bytes for {} rows: a row has {} elements of {}", spec_.name, bytes,
        ids.size(), spec_.most_elements(), name_of(dtype));
}

void Shard::check_clock(int64_t worker, int64_t clock, DataType dtype) const {
  clocks_.check_clock(worker, clock);
  check(clock < clocks_.current() || !clocks_.has_finished(worker, clock), Code::kInvalidArgument,
        "table {}: worker {} pushes to clock {}, which it has finished", spec_.name, worker, clock);
  const auto other = std::ranges::find(waiting_, clock, &WaitingPush::clock);
  check(other == waiting_.end() || other->dtype == dtype, Code::kInvalidArgument,
        "table {}: worker {} pushes {} to clock {}, and another one has pushed {}: pushes of a "
        "clock must have one type",
        spec_.name, worker, name_of(dtype), clock,
        other == waiting_.end() ? "" : name_of(other->dtype));
}

void Shard::check_rows(const PushedRows& pushed, const Rule& rule) const {
  check_ids(pushed.ids);
  check_push(spec_, rule, pushed.dtype, pushed.weight);
  check_bytes(pushed.ids, pushed.dtype, pushed.values.size());
}

template <typename Change>
PushOutcome Shard::once(int64_t client, int64_t number, Change&& change) {
  return with_memory(spec_, [&] {
    std::map<int64_t, int64_t> first;  // made before anything changes
    const auto last = numbers_.find(client);
    if (last == numbers_.end()) first.emplace(client, number);
    const PushOutcome outcome = change();
    if (last == numbers_.end())
      numbers_.merge(first);
    else
      last->second = number;
    return outcome;
  });
}

void Shard::count_nans(const PushedRows& pushed) {
  counters_.nan_values +=
      count_nan(pushed.dtype, pushed.values.data(),
                static_cast<int64_t>(pushed.values.size() / size_of(pushed.dtype)));
}

bool Shard::has_done(int64_t client, int64_t number) const {
  const auto last = numbers_.find(client);
  return last != numbers_.end() && number <= last->second;
}

PushOutcome Shard::push(int64_t client, int64_t number, int64_t clock, const PushedRows& pushed) {
  if (has_done(client, number)) return PushOutcome::kRepeated;
  check_rows(pushed, spec_.rule);
  if (is_synchronous()) check_clock(client, clock, pushed.dtype);
  return once(client, number, [&] {
    const PushOutcome outcome = accept(client, clock, pushed);
    count_nans(pushed);
    return outcome;
  });
}

PushOutcome Shard::assign(int64_t client, int64_t number, const PushedRows& pushed) {
  static const Rule kAssign(rules::Assign{});
  if (has_done(client, number)) return PushOutcome::kRepeated;
  check_rows(pushed, kAssign);
  return once(client, number, [&] {
    Contributions step;
    add_rows(step, pushed);
    prepare({&step, 1});
    const FloatEnvironment environment;
    for (const Contribution& one : step) rows_.hold(one.id);
    each_row(step, [&](std::span<const Contribution> of_row) {
      const Contribution& last = of_row.back();
      const auto slot = rows_.find(last.id);
      Row row = rows_.row(slot ? *slot : rows_.use(last.id));
      RowTally unused;
      row.tally = &unused;
      kAssign.apply(spec_.dtype, row, {last.dtype, last.values});
    });
    rows_.end_step();
    count_nans(pushed);
    return PushOutcome::kApplied;
  });
}

PushOutcome Shard::accept(int64_t client, int64_t clock, const PushedRows& pushed) {
  if (is_synchronous() && clock >= clocks_.current()) {
    keep(client, clock, pushed);
    return PushOutcome::kWaits;
  }
  if (is_synchronous()) {
    counters_.late_pushes++;
    return PushOutcome::kLate;
  }
  Contributions step;
  add_rows(step, pushed);
  prepare({&step, 1});
  if (const auto failure = apply(step, /*skips=*/false)) throw *failure;
  return PushOutcome::kApplied;
}

void Shard::keep(int64_t worker, int64_t clock, const PushedRows& pushed) {
  const size_t bytes = pushed.values.size();
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  if (bytes > 0) copy_bytes(memory.get(), pushed.values.data(), bytes);
  WaitingPush push{.worker = worker,
                   .clock = clock,
                   .dtype = pushed.dtype,
                   .weight = pushed.weight,
                   .ids = {pushed.ids.begin(), pushed.ids.end()},
                   .values = {memory.get(), bytes}};
  const auto after = std::ranges::upper_bound(waiting_, worker, {}, &WaitingPush::worker);
  waiting_.insert(after, KeptPush{std::move(push), std::move(memory)});
}

void Shard::add_rows(Contributions& all, const PushedRows& rows) const {
  all.reserve(all.size() + rows.ids.size());
  const std::byte* at = rows.values.data();
  for (const int64_t id : rows.ids) {
    all.push_back({id, at, rows.dtype, rows.weight});
    at += static_cast<size_t>(spec_.elements(id)) * size_of(rows.dtype);
  }
}

void Shard::prepare(std::span<Contributions> steps) {
  size_t new_rows = 0, sum_bytes = 0, most_bytes = 0, most_rows = 0;
  for (Contributions& step : steps) {
    if (!std::ranges::is_sorted(step, {}, &Contribution::id))
      std::ranges::stable_sort(step, {}, &Contribution::id);
    size_t bytes = 0, rows = 0;
    each_row(step, [&](std::span<const Contribution> of_row) {
      const int64_t id = of_row[0].id;
      const size_t row_bytes = spec_.row_bytes(id);
      if (!rows_.find(id)) new_rows++;
      if (of_row.size() > 1)
        sum_bytes =
            std::max(sum_bytes, row_bytes / size_of(spec_.dtype) * size_of(of_row[0].dtype));
      bytes += row_bytes;
      rows++;
    });
    most_bytes = std::max(most_bytes, bytes);
    most_rows = std::max(most_rows, rows);
  }
  rows_.reserve(new_rows);
  if (sum_bytes > sum_.size()) sum_.resize(sum_bytes);
  if (!custom_) return;
  if (most_bytes > computed_.size()) computed_.resize(most_bytes);
  outcomes_.reserve(most_rows);
}

std::optional<RuleFailed> Shard::apply(const Contributions& step, bool skips) {
  const FloatEnvironment environment;
  if (custom_) return apply_custom(step, skips);
  for (const Contribution& one : step) rows_.hold(one.id);
  each_row(step, [&](std::span<const Contribution> of_row) { apply_row(of_row); });
  rows_.end_step();
  return std::nullopt;
}

void Shard::apply_row(std::span<const Contribution> of_row) {
  const Row row = rows_.row(rows_.use(of_row[0].id));
  const auto apply = [&](const Contribution& one) {
    spec_.rule.apply(spec_.dtype, row, {one.dtype, one.values, one.weight});
  };
  if (spec_.rule.combine() == rules::Merging::kEach)
    std::ranges::for_each(of_row, apply);
  else
    apply(combined(of_row));
}

Shard::Contribution Shard::combined(std::span<const Contribution> of_row) {
  if (of_row.size() == 1 || spec_.rule.combine() == rules::Merging::kLast) return of_row.back();
  Contribution sum = of_row[0];
  const int64_t count = spec_.elements(sum.id);
  copy_bytes(sum_.data(), sum.values, static_cast<size_t>(count) * size_of(sum.dtype));
  sum.values = sum_.data();
  const CombineKernel add = combine_kernel(sum.dtype, RC_SUM);
  for (const Contribution& one : of_row.subspan(1))
    add(sum_.data(), sum_.data(), one.values, count);
  return sum;
}

// All rows are computed before the first one changes.
std::optional<RuleFailed> Shard::apply_custom(const Contributions& step, bool skips) {
  std::optional<RuleFailed> failure;
  std::byte* to = computed_.data();
  outcomes_.clear();
  each_row(step, [&](std::span<const Contribution> of_row) {
    if (failure && !skips) return;
    auto error = compute(of_row, to);
    outcomes_.push_back(error ? nullptr : to);
    if (error && !failure) failure = std::move(error);
    to += spec_.row_bytes(of_row[0].id);
  });
  if (failure && !skips) return failure;
  for (const Contribution& one : step) rows_.hold(one.id);
  auto outcome = outcomes_.begin();
  each_row(step, [&](std::span<const Contribution> of_row) {
    const std::byte* made = *outcome++;
    if (!made) return;
    const Row row = rows_.row(rows_.use(of_row[0].id));
    copy_bytes(row.value, made, spec_.row_bytes(of_row[0].id));
    row.tally->pushes++;
  });
  rows_.end_step();
  return failure;
}

std::optional<RuleFailed> Shard::compute(std::span<const Contribution> of_row, std::byte* to) {
  const Contribution push = combined(of_row);
  const int64_t count = spec_.elements(push.id);
  if (const std::byte* there = find(push.id))
    copy_bytes(to, there, spec_.row_bytes(push.id));
  else
    spec_.initial.fill(spec_.dtype, push.id, to, count);
  try {
    custom_->apply(push.id, spec_.dtype, to, count, push.dtype, push.values);
    return std::nullopt;
  } catch (const Error& error) {
    counters_.failed_rows++;
    return RuleFailed(error.within(fmt::format("table {}: row {}", spec_.name, push.id)));
  }
}

void Shard::log_failure(const RuleFailed& failure) {
  if (std::exchange(failure_was_logged_, true)) return;
  log_warning("at the end of a clock a row was not updated: {}", failure.what());
}

// ---- pulls

std::optional<int64_t> Shard::pull(std::optional<int64_t> clock, std::span<const int64_t> ids,
                                   std::span<std::byte> out) const {
  check_ids(ids);
  check_bytes(ids, spec_.dtype, out.size());
  if (clock)
    if (const auto wanted = clocks_.waits_for(*clock)) return wanted;
  const FloatEnvironment environment;
  std::byte* at = out.data();
  for (const int64_t id : ids) {
    const size_t bytes = spec_.row_bytes(id);
    if (const std::byte* there = find(id))
      copy_bytes(at, there, bytes);
    else
      spec_.initial.fill(spec_.dtype, id, at, spec_.elements(id));
    at += bytes;
  }
  return std::nullopt;
}

const std::byte* Shard::find(int64_t id) const {
  const auto slot = rows_.find(id);
  return slot ? rows_.value(*slot) : nullptr;
}

// ---- clocks

void Shard::join(int64_t worker, int64_t clock) {
  // It begins the clock anew, whatever it did before it left.
  if (!clocks_.clock_of(worker))
    std::erase_if(waiting_, [&](const WaitingPush& push) { return push.worker == worker; });
  with_memory(spec_, [&] {
    Clocks after = clocks_;
    after.join(worker, clock);
    advance(std::move(after));
  });
}

void Shard::leave(int64_t worker) {
  with_memory(spec_, [&] {
    Clocks after = clocks_;
    after.leave(worker);
    advance(std::move(after));
  });
}

void Shard::tick(int64_t worker, int64_t clock) {
  clocks_.check_clock(worker, clock);
  with_memory(spec_, [&] {
    Clocks after = clocks_;
    after.tick(worker, clock);
    advance(std::move(after));
  });
}

void Shard::end_grace(int64_t clock) {
  with_memory(spec_, [&] {
    Clocks after = clocks_;
    after.end_grace(clock);
    advance(std::move(after));
  });
}

bool Shard::counts(const WaitingPush& push, const Clocks& after) const {
  const Clocks& clocks = after.clock_of(push.worker) ? after : clocks_;
  return clocks.has_finished(push.worker, push.clock);
}

void Shard::advance(Clocks after) {
  after.complete();
  std::map<int64_t, Contributions> of_clocks;
  for (const WaitingPush& push : waiting_)
    if (push.clock < after.current() && counts(push, after))
      add_rows(of_clocks[push.clock], {push.ids, push.dtype, push.values, push.weight});
  std::vector<Contributions> steps;
  for (auto& [clock, step] : of_clocks) steps.push_back(std::move(step));
  prepare(steps);
  // From here on nothing throws.
  for (const Contributions& step : steps)
    if (const auto failure = apply(step, /*skips=*/true)) log_failure(*failure);
  std::erase_if(waiting_, [&](const WaitingPush& push) {
    const bool is_over = push.clock < after.current(), counted = counts(push, after);
    if (is_over && !counted) counters_.late_pushes++;
    return is_over || (!counted && !after.clock_of(push.worker));
  });
  clocks_ = std::move(after);
}

// ---- others

PushOutcome Shard::set_rule(int64_t client, int64_t number, const Rule& rule) {
  if (has_done(client, number)) return PushOutcome::kRepeated;
  check_push(spec_, rule, spec_.dtype, 1);
  return once(client, number, [&] {
    if (rule == spec_.rule) return PushOutcome::kApplied;
    const bool keeps_state = rule.parameters().index() == spec_.rule.parameters().index() &&
                             rule.state_slots() == spec_.rule.state_slots() && !rule.custom();
    Rule next = rule;
    auto custom = made(spec_, rule);
    if (!keeps_state) rows_.begin_state(rule);
    spec_.rule = std::move(next);
    custom_ = std::move(custom);
    if (!rule.takes_weights())
      for (WaitingPush& push : waiting_) push.weight = 1;
    return PushOutcome::kApplied;
  });
}

void Shard::forget(int64_t client) { numbers_.erase(client); }

TableCounters Shard::counters() const {
  TableCounters all = counters_;
  all.evicted_rows += rows_.evicted();
  return all;
}

}  // namespace ringcoll
