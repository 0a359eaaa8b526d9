// The best k hits that a thread has seen of a query, and the threshold that a new one must reach.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rbegir::scan {

struct Hit {
    int64_t key, position;
};

// The total order. An object, because sorts call a function through a pointer.
constexpr auto better = [](const Hit &a, const Hit &b) {
    return a.key != b.key ? a.key > b.key : a.position < b.position;
};

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

    // No position before `front` will come any more: keys equal to the k-th best lose against it if it lies before.
    // Without this, many equal keywords would all pass the threshold.
    void advance(int64_t front) {
        if (full_ && last_.position < front) raise(last_.key + 1);
    }

  private:
    size_t k_, limit_;
    int64_t threshold_, proven_;
    bool full_ = false;
    Hit last_{};  // the k-th best when the hits were last cut down
    std::vector<Hit> hits_;
};

}  // namespace rbegir::scan
