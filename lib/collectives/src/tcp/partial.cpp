#include "tcp/partial.hpp"

#include <array>

#include "copy.hpp"

namespace ddrun::collectives {

Partial::Partial(const Call& call, int ranks)
    : element_(size_of(call.type)),
      number_(size_of(accumulator_type(call.type))),
      ranks_(ranks),
      loops_(kernels(call.type, call.op)),
      on_the_way_(kernels(accumulator_type(call.type), call.op == ReduceOp::avg ? ReduceOp::sum : call.op)) {}

void Partial::merge(void* out, const void* first, const void* second, std::size_t count) const {
  const std::array in{first, second};
  on_the_way_.reduce(in.data(), in.size(), &out, 1, 0, count, Stores::normal, ranks_);
}

void Partial::reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const {
  const std::array in{first, second};
  (finished ? loops_ : on_the_way_).reduce(in.data(), in.size(), &out, 1, 0, count, Stores::normal, ranks_);
}

void Merging::take(std::size_t offset, std::byte* data, std::size_t bytes) {
  std::byte* const mine = mine_ + offset;
  const std::size_t count = bytes / partial_.number();
  if (theirs_first_) partial_.merge(mine, data, mine, count);
  else partial_.merge(mine, mine, data, count);
}

void Passing::take(std::size_t offset, std::byte* data, std::size_t bytes) {
  const std::size_t count = bytes / arriving();
  const std::size_t first = offset / arriving();
  const std::byte* const own = places_.own + first * partial_.element();
  std::byte* const to = places_.to + first * (places_.last ? partial_.element() : partial_.number());
  if (!partial_.apart()) return partial_.reduce(to, data, own, count, places_.last);
  std::byte* numbers = data;
  if (!places_.numbers) {
    numbers = places_.last ? scratch_.at_least(count * partial_.number()) : to;
    partial_.load(numbers, data, count);
  }
  partial_.accumulate(numbers, own, count);
  if (places_.last) partial_.finish(to, numbers, count);
  else if (numbers != to) copy_bytes(to, numbers, count * partial_.number());
}

}  // namespace ddrun::collectives
