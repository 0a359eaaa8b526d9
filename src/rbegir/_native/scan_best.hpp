// The best k hits that a thread has seen of a query, and the threshold that a new one must reach.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace rbegir::scan {

constexpr int64_t NO_THRESHOLD = std::numeric_limits<int64_t>::min();  // every keyword passes

struct Hit {
    int64_t key, position;
};

// The total order. An object, because sorts call a function through a pointer.
constexpr auto better = [](const Hit &a, const Hit &b) {
    return a.key != b.key ? a.key > b.key : a.position < b.position;
};

// What the hits of one query are limited to, besides the candidates of a partition.
struct Limit {
    int64_t floor;   // the least key; NO_THRESHOLD: any
    Hit before;      // hits come behind this one in the total order; {INT64_MAX, −1}: any
    int64_t filter;  // the number of the mask that they must pass; −1: none
    bool few;        // whether that mask passes so few keywords that each is scored
};
constexpr Limit NO_LIMIT{NO_THRESHOLD, {std::numeric_limits<int64_t>::max(), -1}, -1, false};

class Best {
  public:
    Best(size_t k, int64_t threshold) : k_(k), limit_(2 * k + 256), threshold_(threshold), proven_(threshold) {}

    int64_t threshold() const { return threshold_; }
    int64_t proven() const { return proven_; }  // k hits reach this key: a threshold for everybody
    std::vector<Hit> &hits() { return hits_; }  // in no order

    void raise(int64_t threshold) { threshold_ = std::max(threshold_, threshold); }

    void add(Hit hit) {
        if (hit.key < threshold_) return;
        hits_.push_back(hit);
        if (hits_.size() < limit_) return;
        std::nth_element(hits_.begin(), hits_.begin() + (k_ - 1), hits_.end(), better);
        hits_.resize(k_);
        last_ = hits_.back();
        full_ = true;
        proven_ = std::max(proven_, last_.key);
        raise(last_.key);
    }

    // All positions to come lie behind those that came: keys equal to the k-th best lose against it. Without this, many
    // equal keywords would all pass the threshold.
    void advance() {
        if (full_) raise(last_.key + 1);
    }

  private:
    size_t k_, limit_;
    int64_t threshold_, proven_;
    bool full_ = false;
    Hit last_{};  // the k-th best when the hits were last cut down
    std::vector<Hit> hits_;
};

}  // namespace rbegir::scan
