// SPDX-License-Identifier: Apache-2.0
// The cache object as a user sees it. A model made of plain vectors records what every sequence holds; the cache must
// give the same result as attention over those vectors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expect.h"

namespace {

constexpr int kHeads = 4, kHeadsKv = 2, kDim = 8, kRow = kHeadsKv * kDim, kSequences = 4, kCapacity = 21;

attune_cache_options options(int page, int pages = 0) {
  attune_cache_options o{};
  o.dtype = ATTUNE_F32, o.heads = kHeadsKv, o.dim_qk = kDim;
  o.sequences = kSequences, o.capacity = kCapacity, o.page = page, o.pages = pages;
  return o;
}

uint32_t state = 1;
int below(int n) { return int((state = state * 1664525u + 1013904223u) >> 8) % n; }
std::vector<float> numbers(size_t n) {
  std::vector<float> x(n);
  for (float& one : x) one = float(below(2001) - 1000) / 500.f;
  return x;
}

// One call: `added` tokens for each of `batch` sequences.
struct Step {
  int batch, added;
  std::vector<float> q, k, v, out;

  Step(int sequences, int tokens)
      : batch(sequences), added(tokens), q(numbers(size_t(batch * added * kHeads * kDim))),
        k(numbers(size_t(batch * added * kRow))), v(numbers(k.size())), out(q.size(), NAN) {}
  attune::Problem problem() const {
    attune::Problem p("forward f32 b" + std::to_string(batch) + " h4/2 q" + std::to_string(std::max(added, 1)) +
                      " k1 d8 causal append");
    p.c.len_k = 0;  // the capacity
    return p;
  }
  attune::Args args() {
    attune::Args a;
    a.set(ATTUNE_Q, {q.data(), "bshd", {batch, added, kHeads, kDim}});
    a.set(ATTUNE_OUT, {out.data(), "bshd", {batch, added, kHeads, kDim}});
    a.set(ATTUNE_K_NEW, {k.data(), "bshd", {batch, added, kHeadsKv, kDim}});
    a.set(ATTUNE_V_NEW, {v.data(), "bshd", {batch, added, kHeadsKv, kDim}});
    return a;
  }
};

// The keys and values of every sequence.
struct Model {
  std::vector<float> k[kSequences], v[kSequences];

  int length(int s) const { return int(k[s].size()) / kRow; }
  void append(const Step& step, const std::vector<int32_t>& order) {
    const auto n = std::ptrdiff_t(step.added * kRow);
    for (size_t b = 0; b < order.size(); ++b) {
      const auto at = std::ptrdiff_t(b) * n;
      k[order[b]].insert(k[order[b]].end(), step.k.begin() + at, step.k.begin() + at + n);
      v[order[b]].insert(v[order[b]].end(), step.v.begin() + at, step.v.begin() + at + n);
    }
  }
  void resize(int s, int length) { k[s].resize(size_t(length * kRow)), v[s].resize(k[s].size()); }
  // The largest difference from attention over the current contents of a sequence.
  float error(const Step& step, int b, int s) const {
    const int rows = step.added * kHeads * kDim;
    std::vector<float> q(step.q.begin() + b * rows, step.q.begin() + (b + 1) * rows), out(q.size());
    const attune::Problem p("forward f32 b1 h4/2 q" + std::to_string(step.added) + " k" + std::to_string(length(s)) +
                            " d8 causal");
    attune::Args a;
    a.set(ATTUNE_Q, {q.data(), "bshd", {1, step.added, kHeads, kDim}});
    a.set(ATTUNE_K, {k[s].data(), "bshd", {1, length(s), kHeadsKv, kDim}});
    a.set(ATTUNE_V, {v[s].data(), "bshd", {1, length(s), kHeadsKv, kDim}});
    a.set(ATTUNE_OUT, {out.data(), "bshd", {1, step.added, kHeads, kDim}});
    attune::call(p, a);
    float worst = 0;
    for (int n = 0; n < rows; ++n) {
      const float off = std::fabs(out[size_t(n)] - step.out[size_t(b * rows + n)]);
      worst = off <= worst ? worst : off;  // NaN counts as the worst
    }
    return worst;
  }
};

std::vector<float> contents(const attune::Cache& cache) {
  std::vector<float> all;
  for (const int role : {ATTUNE_K, ATTUNE_V}) {
    const attune_tensor t = cache.view(role);
    const auto* data = static_cast<const float*>(t.data);
    all.insert(all.end(), data, data + t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]);
  }
  return all;
}

// Whether the cache's memory has the rows of the model, for every sequence.
bool holds(const attune::Cache& cache, const Model& model, int page) {
  const auto *k = static_cast<const float*>(cache.view(ATTUNE_K).data),
             *v = static_cast<const float*>(cache.view(ATTUNE_V).data);
  for (int s = 0; s < kSequences; ++s)
    for (int n = 0; n < model.length(s); ++n) {
      const int row = page ? cache.pages(s)[n / page] * page + n % page : s * kCapacity + n;
      if (std::memcmp(k + row * kRow, &model.k[s][size_t(n * kRow)], kRow * sizeof(float)) ||
          std::memcmp(v + row * kRow, &model.v[s][size_t(n * kRow)], kRow * sizeof(float)))
        return false;
    }
  return true;
}

// How many sequences hold each page.
std::map<int, int> users_of(const attune::Cache& cache, const Model& model, int page) {
  std::map<int, int> users;
  for (int s = 0; page && s < kSequences; ++s)
    for (int n = 0; n * page < model.length(s); ++n) ++users[cache.pages(s)[n]];
  return users;
}

// Many random steps: some sequences append, some are rewound, some are freed, and some begin with the keys of others.
void random_steps(int page, int pages) {
  const std::string what = "page " + std::to_string(page);
  std::vector<float> k(size_t(page ? pages * page : kSequences * kCapacity) * kRow), v(k.size());
  attune_cache_options o = options(page, pages);
  if (page != 3) o.k = k.data(), o.v = v.data();
  attune::Cache cache(o);
  Model model;
  const auto pages_of = [&](int tokens) { return page ? (tokens + page - 1) / page : 0; };
  int refusals = 0, forks = 0, copies = 0;
  for (int turn = 0; turn < 600; ++turn) {
    std::vector<int32_t> order;
    for (int s = 0; s < kSequences; ++s)
      if (below(3)) order.insert(order.begin() + below(int(order.size()) + 1), s);
    if (order.empty()) continue;
    Step step(int(order.size()), 1 + below(6));
    int needed = 0;
    bool fits = true;
    std::map<int, int> users = users_of(cache, model, page);
    expect(cache.free_pages() == (page ? pages - int(users.size()) : 0), what + ": free pages");
    for (const int32_t s : order) {
      fits &= model.length(s) + step.added <= kCapacity;
      needed += pages_of(model.length(s) + step.added) - pages_of(model.length(s));
      if (page && model.length(s) % page)
        if (int& of_last = users[cache.pages(s)[model.length(s) / page]]; of_last > 1) --of_last, ++needed, ++copies;
    }
    if (fits && needed <= cache.free_pages()) {
      cache.attend(step.problem(), step.args(), order);
      model.append(step, order);
      for (size_t b = 0; b < order.size(); ++b)
        expect(model.error(step, int(b), order[b]) < 1e-5f, what + ": attention over a cache");
    } else {
      ++refusals;
      const std::vector<float> before = contents(cache);
      refused([&] { cache.attend(step.problem(), step.args(), order); }, fits ? "more pages are needed" : "do not fit");
      expect(!std::memcmp(before.data(), contents(cache).data(), before.size() * sizeof(float)), what + ": written");
    }
    if (const int s = below(kSequences); !below(3)) {
      const int length = below(model.length(s) + 1);
      cache.resize(s, length), model.resize(s, length);
    } else if (!below(6)) {
      cache.free(s), model.resize(s, 0);
    }
    if (const int from = below(kSequences), to = below(kSequences); from != to && !below(3)) {
      const int length = below(model.length(from) + 1), free = cache.free_pages();
      cache.free(to), model.resize(to, 0);
      const int freed = cache.free_pages();
      cache.fork(from, to, length), ++forks;
      model.k[to] = model.k[from], model.v[to] = model.v[from], model.resize(to, length);
      expect(cache.free_pages() == freed && freed >= free, what + ": a fork takes no page");
    }
    for (int s = 0; s < kSequences; ++s) expect(cache.length(s) == model.length(s), what + ": length");
    expect(holds(cache, model, page), what + ": the rows of a sequence changed");
  }
  expect(refusals > 10, what + ": nothing was refused");
  expect(forks > 50 && (page < 2 || copies > 10), what + ": nothing was shared");
}

// A failed call, and room that the caller fills, with a page that two sequences hold.
void a_shared_page_is_left_once() {
  attune::Cache cache(options(4, 4));
  Model model;
  Step first(1, 6), more(1, 1);
  cache.attend(first.problem(), first.args(), {0});
  model.append(first, {0});
  cache.fork(0, 1);
  model.k[1] = model.k[0], model.v[1] = model.v[0];
  expect(cache.free_pages() == 2 && cache.length(1) == 6, "a fork holds the pages of another sequence");
  attune::Args wrong = more.args();
  wrong.set(ATTUNE_OUT, {more.out.data(), "bshd", {1, 2, kHeads, kDim}});
  const int32_t shared = cache.pages(1)[1];
  refused([&] { cache.attend(more.problem(), wrong, {1}); }, "out: seq = 2 is not 1");
  expect(cache.free_pages() == 2 && cache.pages(1)[1] == shared && cache.length(1) == 6, "after a failed call");
  cache.resize(1, 7);  // the caller writes row 6
  expect(cache.free_pages() == 1 && cache.pages(1)[1] != shared && cache.pages(0)[1] == shared, "a page of its own");
  expect(holds(cache, model, 4), "the rows of a page that was left are copied");
  cache.resize(1, 6);
  cache.attend(more.problem(), more.args(), {1});
  model.append(more, {1});
  expect(cache.free_pages() == 1 && holds(cache, model, 4) && model.error(more, 0, 1) < 1e-5f, "a page is left once");
  cache.free(0);
  expect(cache.free_pages() == 2 && holds(cache, Model{.k = {{}, model.k[1]}, .v = {{}, model.v[1]}}, 4),
         "the shared page stays with the other sequence");
  refused([&] { cache.fork(1, 1, 2); }, "cache: sequence 1 is forked into itself");
  refused([&] { cache.fork(1, 4, 2); }, "cache: sequence 4 is not in 0 ... 3");
  refused([&] { cache.fork(-1, 0, 2); }, "cache: sequence -1 is not in 0 ... 3");
  refused([&] { cache.fork(1, 0, 8); }, "cache: length 8 is not in 0 ... 7, the keys of sequence 1");
  cache.fork(1, 0, 3);
  refused([&] { cache.fork(1, 0, 2); }, "cache: sequence 0 has 3 keys; an empty sequence is accepted");
  expect(attune_cache_fork(nullptr, 0, 1, 0, nullptr) == 1, "no cache");
}

void pages_are_handed_out_once() {
  attune::Cache cache(options(2, 6));
  Step step(2, 4);
  cache.attend(step.problem(), step.args());
  std::vector<int32_t> all(cache.pages(0), cache.pages(0) + 2);
  all.insert(all.end(), cache.pages(1), cache.pages(1) + 2);
  std::sort(all.begin(), all.end());
  expect(std::adjacent_find(all.begin(), all.end()) == all.end() && all.front() >= 0 && all.back() < 6, "pages");
  expect(cache.free_pages() == 2, "two pages are left");
  cache.resize(0, 3);
  expect(cache.free_pages() == 2, "a page that is in use is kept");
  cache.resize(0, 2);
  expect(cache.free_pages() == 3, "one that is not is free");
  cache.resize(2, 5);  // space that the caller fills
  expect(cache.free_pages() == 0 && cache.length(2) == 5, "room for keys of the caller");
  refused([&] { cache.resize(2, 7); }, "cache: 1 more pages are needed, but 0 of 6 are free");
  expect(cache.length(2) == 5, "a refused length");
}

// Each sequence reuses pages that the other returned, so page tables kept from an earlier call are stale.
void rewound_pages_are_looked_up_again() {
  attune::Cache cache(options(1));
  Model model;
  for (int turn = 0; turn < 3; ++turn) {
    Step step(2, 3), look(2, 3);
    cache.attend(step.problem(), step.args());
    model.append(step, {0, 1});
    for (int s = 0; s < 2; ++s) expect(model.error(step, s, s) < 1e-5f, "after a rewind");
    Step other(2, 1);  // a different order forces a new lookup of the pages
    cache.attend(other.problem(), other.args(), {1, 0});
    model.append(other, {1, 0});
    for (int s = 0; s < 2; ++s) expect(model.error(other, 1 - s, s) < 1e-5f, "in another order");
    for (int s = 0; s < 2; ++s) cache.resize(s, 1), model.resize(s, 1);
    cache.attend(look.problem(), look.args());  // both rows are cached again, then rewound
    for (int s = 0; s < 2; ++s) cache.resize(s, 1);
  }
}

void a_failed_call_changes_nothing() {
  attune::Cache cache(options(4));
  Step step(1, 3);
  attune::Args args = step.args();
  args.set(ATTUNE_OUT, {step.out.data(), "bshd", {1, 2, kHeads, kDim}});
  const int32_t pages = cache.free_pages();
  refused([&] { cache.attend(step.problem(), args); }, "out: seq = 2 is not 3");
  expect(cache.length(0) == 0 && cache.free_pages() == pages, "after a failed call");
  cache.attend(step.problem(), step.args());
  expect(cache.length(0) == 3, "after one that succeeds");
}

void only_appending() {
  for (const int page : {0, 2}) {
    attune::Cache cache(options(page));
    Step fill(2, 5), one(2, 1);
    attune::Args args = fill.args();
    args.set(ATTUNE_Q, {fill.q.data(), "bshd", {2, 0, kHeads, kDim}});
    args.set(ATTUNE_OUT, {fill.out.data(), "bshd", {2, 0, kHeads, kDim}});
    cache.attend(fill.problem(), args);
    cache.attend(one.problem(), one.args());
    Model model;
    model.append(fill, {0, 1}), model.append(one, {0, 1});
    for (int s = 0; s < 2; ++s) expect(model.error(one, s, s) < 1e-5f, "queries after keys");
    attune::Problem look("forward f32 b2 h4/2 q1 k6 d8 causal");  // a call without append
    Step again = one;
    attune::Args reading;
    reading.set(ATTUNE_Q, {again.q.data(), "bshd", {2, 1, kHeads, kDim}});
    reading.set(ATTUNE_OUT, {again.out.data(), "bshd", {2, 1, kHeads, kDim}});
    std::fill(again.out.begin(), again.out.end(), NAN);
    cache.attend(look, reading);
    for (int s = 0; s < 2; ++s) expect(model.error(again, s, s) < 1e-5f, "reading only");
    expect(cache.length(1) == 6, "a length after reading");
  }
}

void misuse() {
  attune::Cache cache(options(4));
  Step step(2, 3);
  attune::Args args = step.args();
  const attune::Problem problem = step.problem();
  refused([&] { cache.attend(problem, args, {0, 0}); }, "cache: sequence 0 is given twice");
  refused([&] { cache.attend(problem, args, {0, 4}); }, "cache: sequence 4 is not in 0 ... 3");
  refused([&] { cache.attend(problem, args, {-1, 0}); }, "cache: sequence -1 is not in 0 ... 3");
  refused([&] { cache.attend(problem, args, {0}); }, "cache: 1 sequences are named for a batch of 2");
  refused([&] { cache.length(4); }, "cache: sequence 4 is not in 0 ... 3");
  refused([&] { cache.resize(0, kCapacity + 1); }, "cache: length 22 is not in 0 ... 21");
  refused([&] { cache.view(ATTUNE_Q); }, "is neither ATTUNE_K nor ATTUNE_V");
  attune::Problem other = problem;
  other.c.batch = 5;
  refused([&] { cache.attend(other, args); }, "cache: batch = 5 is not in 1 ... 4");
  other = problem, other.c.len_k = 2;
  refused([&] { cache.attend(other, args); }, "cache: sequence 0 would have 3 keys, which exceed the bound 2");
  other = problem, other.c.keys = ATTUNE_PAGED, other.c.page = 16;
  refused([&] { cache.attend(other, args); }, "cache: its keys are paged4, but those of the problem are paged16");
  other = problem, other.c.pass = ATTUNE_BACKWARD;
  refused([&] { cache.attend(other, args); }, "cache: supports only a forward, not a backward");
  const int32_t used[] = {0, 0};
  refused([&] { cache.attend(problem, attune::Args(args).set(ATTUNE_USED_K, {used, "b", {2}})); },
          "cache: used_k given, but the cache provides it");
  refused([&] { cache.attend(problem, attune::Args()); }, "q: not given");
  expect(cache.length(0) == 0, "after all that");

  const struct { void (*set)(attune_cache_options&); const char* says; } wrong[] = {
      {[](attune_cache_options& o) { o.dtype = ATTUNE_I32; }, "cache: dtype 6 is not one of f64, f32, f16, bf16, e4m3"},
      {[](attune_cache_options& o) { o.heads = 0; }, "cache: heads = 0 is below 1"},
      {[](attune_cache_options& o) { o.capacity = -1; }, "cache: capacity = -1 is below 1"},
      {[](attune_cache_options& o) { o.page = -1; }, "cache: page = -1 is below 0"},
      {[](attune_cache_options& o) { o.page = 0, o.pages = 3; }, "cache: pages = 3 given, but page = 0"},
      {[](attune_cache_options& o) { o.k = &o; }, "cache: k given without v"},
      {[](attune_cache_options& o) { o.device = "abacus"; }, "device 'abacus'"},
      {[](attune_cache_options& o) { o.device = "h200"; }, "cache: device 'h200' is not present"},
      {[](attune_cache_options& o) { o.sequences = INT32_MAX, o.page = 1; }, "exceed 2^31 numbers"},
      {[](attune_cache_options& o) { o.page = 0, o.capacity = o.heads = o.dim_qk = INT32_MAX; }, "exceed 2^60 bytes"},
  };
  for (const auto& [set, says] : wrong) {
    attune_cache_options o = options(4);
    set(o);
    refused([&] { attune::Cache made(o); }, says);
  }
  attune_cache* out = nullptr;
  attune_cache_options o = options(4);
  o.size = 8;  // smaller than the struct's first version
  refused(attune_cache_create(&o, &out), "options.size = 8 is not sizeof(attune_cache_options)");
  refused(attune_cache_create(nullptr, &out), "options is null");
  refused(attune_cache_create(&o, nullptr), "out is null");
  expect(!out, "nothing was made");
  expect(attune_cache_attend(nullptr, &problem.c, nullptr, nullptr, nullptr) == 1, "no cache");
  expect(attune_cache_resize(nullptr, 0, 0) == 1 && attune_cache_length(nullptr, 0) == -1, "no cache");
  expect(!attune_cache_pages(nullptr, 0) && attune_cache_free_pages(nullptr) == 0, "no cache");
  attune_cache_destroy(nullptr);
}

}  // namespace

int main() {
  random_steps(0, 0), random_steps(1, 50), random_steps(3, 20), random_steps(16, 6);
  pages_are_handed_out_once();
  rewound_pages_are_looked_up_again();
  a_failed_call_changes_nothing();
  only_appending();
  a_shared_page_is_left_once();
  misuse();
  return finish("cache");
}
