#pragma once

#include <cstddef>
#include <memory>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "tcp/peers.hpp"

namespace ddrun::collectives {

/// Memory that grows and is used again by the next call. Its content is lost when it grows.
class Scratch {
 public:
  [[nodiscard]] std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      data_.reset(new std::byte[bytes]);
      bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t bytes_ = 0;
};

/// How a call's partial results are made: numbers of accumulator_type(), which are rounded, and averages divided, only
/// when they are finished. Counts are elements.
class Partial {
 public:
  Partial(const Call& call, int ranks);

  [[nodiscard]] std::size_t element() const { return element_; }  ///< bytes of an input's or result's
  [[nodiscard]] std::size_t number() const { return number_; }    ///< bytes of a partial result's
  /// Whether the two are different.
  [[nodiscard]] bool apart() const { return element_ != number_; }

  void load(void* numbers, const void* in, std::size_t count) const { loops_.load(numbers, in, count); }
  /// out = first op second, of numbers. `out` may be either of them.
  void merge(void* out, const void* first, const void* second, std::size_t count) const;
  void finish(void* out, const void* numbers, std::size_t count) const { loops_.finish(out, numbers, count, ranks_); }
  /// numbers = numbers op in, with an input.
  void accumulate(void* numbers, const void* in, std::size_t count) const { loops_.accumulate(numbers, in, count); }
  /// out = first op second, of inputs that are of the accumulator's type; `finished` if nothing comes after it.
  void reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const;

 private:
  std::size_t element_;
  std::size_t number_;
  int ranks_;
  const Kernels& loops_;
  const Kernels& on_the_way_;  ///< of numbers; an average is a sum until it is finished
};

/// Merges numbers that arrive into those that are there.
class Merging final : public Arrival {
 public:
  /// `theirs_first`: the order of the operation.
  Merging(const Partial& partial, std::byte* mine, bool theirs_first)
      : partial_(partial), mine_(mine), theirs_first_(theirs_first) {}
  void take(std::size_t offset, std::byte* data, std::size_t bytes) override;

 private:
  const Partial& partial_;
  std::byte* mine_;
  bool theirs_first_;
};

/// Reduces what arrives, the inputs of the ranks so far, with this rank's own, on its way to the next.
class Passing final : public Arrival {
 public:
  struct Places {
    const std::byte* own = nullptr;  ///< this rank's input
    std::byte* to = nullptr;         ///< finished elements if `last`, else numbers; may be `own` if types are alike
    bool numbers = false;            ///< what arrives: numbers, or one rank's input
    bool last = false;
  };
  /// `scratch` is used where types differ.
  Passing(const Partial& partial, Scratch& scratch, const Places& places)
      : partial_(partial), scratch_(scratch), places_(places) {}
  void take(std::size_t offset, std::byte* data, std::size_t bytes) override;

  /// Bytes of an arriving element.
  [[nodiscard]] std::size_t arriving() const { return places_.numbers ? partial_.number() : partial_.element(); }

 private:
  const Partial& partial_;
  Scratch& scratch_;
  Places places_;
};

}  // namespace ddrun::collectives
