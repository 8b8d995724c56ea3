"""The bugs that mutate.py plants: file, exact text that occurs once, what it becomes, what that breaks, who must see it.

Programs are asked in order until one fails, so the one that should see the bug comes first. Texts that the code has
outgrown are an error: a mutant that is not planted proves nothing.
"""

MASK, ARGS, SOFTMAX = "src/core/mask.h", "src/core/args.h", "src/core/softmax.h"
PROBLEM, COST, DROPOUT = "src/core/problem.cpp", "src/core/cost.cpp", "src/core/dropout.h"
PLAN, RULES, CHECK = "src/plan/plan.cpp", "src/plan/rules.cpp", "src/core/check.cpp"
FORWARD, BACKWARD = "src/attention/forward.cpu.cpp", "src/attention/backward.cpu.cpp"
SCALAR, NEON = "src/machine/cpu/scalar.cpp", "src/machine/cpu/neon.cpp"

CONFORMANCE = ["conformance_quick_test"]
KERNELS = ["machine_kernels_test", *CONFORMANCE]

MUTANTS = [
    # Masks and walks
    (MASK, "return -left <= ahead(i, j) &&", "return -left < ahead(i, j) &&",
     "a window's left edge is hidden", ["core_mask_test"]),
    (MASK, "b.q_first = b.k_position(len_k - 1) - (len_q - 1);", "b.q_first = b.k_position(len_k - 1) - len_q;",
     "bottom-right alignment is one off", ["core_mask_test", "reference_attention_test"]),
    (MASK, "if (m.kind == MaskKind::causal) b.right = 0;", "if (m.kind == MaskKind::causal) b.right = 1;",
     "causal sees one key of the future", ["core_mask_test", "reference_attention_test"]),
    (MASK, "a >= 0 ? a / b : -((b - 1 - a) / b);", "a / b;",
     "division of negative positions rounds to zero", ["core_mask_test"]),
    (MASK, "band.right - band.k_first, band.k_step) + 1, 0, len_k);", "band.right - band.k_first, band.k_step), 0, len_k);",
     "the last key a query sees is left out", ["core_mask_test"]),
    (MASK, "hi = int(ceil_div(last_key(r.last - 1), tile_k));", "hi = last_key(r.last - 1) / tile_k;",
     "the walk leaves out its last, ragged tile", ["core_mask_test"]),
    (MASK, "return clamp(band.k_position(j) + band.left - band.q_first + 1, 0, len_q);",
     "return clamp(band.k_position(j) + band.left - band.q_first, 0, len_q);",
     "the walk of a backward leaves out a key's last query", ["core_mask_test"]),
    (MASK, "!(first_query(keys.last - 1) <= first && last <= last_query(keys.first))", "!(first_query(keys.last - 1) <= first)",
     "a tile of queries that is cut on one side counts as whole", ["core_mask_test"]),
    (MASK, "return inside.cut(r, first, first + list.blocks.k);", "return inside.cut(r, first, first + inside.tile_k);",
     "a listed block has the size of a tile", ["core_mask_test"]),
    # One sequence of a batch
    (ARGS, "s.k_first += pad;", "s.k_first += 0 * pad;",
     "left padding is attended", ["core_args_test", *CONFORMANCE]),
    (ARGS, "s.q_first = clamp(cu[b], 0, rows_q);", "s.q_first = cu[b];",
     "a hostile start of a sequence reads outside the queries", ["core_args_test"]),
    # Softmax, dropout, cost
    (SOFTMAX, "const float factor = max == -INFINITY ? 0.f : exp2f(max - raised);", "const float factor = exp2f(max - raised);",
     "the first tile of a row that sees nothing gives NaN", ["core_softmax_test"]),
    (SOFTMAX, "    sum *= factor;\n", "",
     "the running sum is not rescaled", ["core_softmax_test"]),
    (SOFTMAX, "(max + log2f(sum)) * kLn2", "(max + log2f(sum))",
     "the log-sum-exp leaves the library in base 2", ["core_softmax_test"]),
    (SOFTMAX, "if (top == -INFINITY) return {0.f, 0.f, -INFINITY};", "",
     "merging two empty rows gives NaN", ["core_softmax_test"]),
    (DROPOUT, "round < 10;", "round < 9;",
     "Philox with a round too few", ["core_dropout_test"]),
    (DROPOUT, ".w[k_position & 3]", ".w[k_position & 1]",
     "neighbouring keys share their random word", ["core_dropout_test"]),
    (COST, "backward ? 3.0 * p.dim_qk + 2.0 * p.dim_v", "backward ? 2.0 * p.dim_qk + 2.0 * p.dim_v",
     "a product of the backward is not counted", ["core_cost_test"]),
    (COST, "clamped_sum(first - band.left - 1, last - band.left - 1,", "clamped_sum(first - band.left, last - band.left,",
     "pairs at a window's left edge are not counted", ["core_cost_test"]),
    # Problems and their lines
    (PROBLEM, "if (p.heads_q % p.heads_kv) return", "if (p.heads_q < p.heads_kv) return",
     "heads of keys need not divide heads of queries", ["core_problem_test"]),
    (PROBLEM, "m.k_step != 1 || m.k_phase)", "m.k_step != 1)",
     "two problems print the same line", ["core_problem_test"]),
    (PROBLEM, "if (p.precision != Precision::full) s +=", "if (p.precision == Precision::tf32) s +=",
     "a precision is not printed", ["core_problem_test"]),
    (PROBLEM, "if (rotary && !p.has(Option::append))", "if (false)",
     "rotary without append is accepted", ["core_problem_test"]),
    # Planner and rules
    (PLAN, "if (!b->only_by_name && accept(", "if (accept(",
     "the reference is chosen", ["plan_plan_test"]),
    (PLAN, "if (accept(b, \"asked for by name\")) return Status::good();\n    return Status::no(",
     "if (accept(b, \"asked for by name\")) return Status::good();\n    if (false) return Status::no(",
     "a forced backend that refuses is silently replaced", ["plan_plan_test"]),
    (PLAN, "if (b && accept(b, rule->source)) return Status::good();", "",
     "tuned rules are read and ignored", ["plan_plan_test"]),
    (PLAN, "out = plans_.try_emplace(p, std::move(made)).first->second.get();",
     "plans_[p] = std::move(made), out = plans_[p].get();",
     "a plan that another thread holds is destroyed", ["plan_plan_test"] * 3),  # a race: three tries
    (RULES, "(!best || r.min_len >= best->min_len)", "!best",
     "the first rule decides and not the longest", ["plan_rules_test"]),
    (RULES, "r.min_heads <= heads && heads <= r.max_heads", "r.min_heads <= heads && heads < r.max_heads",
     "the last head count of a rule is left out", ["plan_rules_test"]),
    (RULES, "if (one.ends_with('\\r')) one.remove_suffix(1);", "",
     "a file with turned line ends is refused", ["plan_rules_test"]),
    (RULES, "if (!is_new) return", "if (false) return",
     "two rules with one condition are accepted", ["plan_rules_test"]),
    # Checks of arguments
    (CHECK, "if (const Roles missing = required & ~given)", "if (const Roles missing = required & ~given & ~roles(Role::v))",
     "a call without v is run", ["capi_misuse"]),
    (CHECK, "if (overlaps_itself(a[role[n]]))", "if (false)",
     "outputs that lie on themselves are accepted", ["capi_misuse"]),
    (CHECK, "bytes[n].meets(bytes[m]) && share_memory(", "bytes[n].meets(bytes[m]) && false && share_memory(",
     "an output may be an input", ["capi_misuse"]),
    # CPU forward and backward
    (FORWARD, "if (!(top[r] * scale_s_ > ref[r] + kLazy)) continue;", "if (!(top[r] * scale_s_ > ref[r] + 1000.f)) continue;",
     "the reference of a row hardly ever moves", CONFORMANCE),
    (FORWARD, "      sum[r] *= factor[r];\n", "",
     "the sum is not rescaled when the reference moves", CONFORMANCE),
    (FORWARD, "tiles * (split + 1) / splits; ++n) {\n      const Tile t", "tiles * (split + 1) / splits - (splits > 1); ++n) {\n      const Tile t",
     "every split of the keys leaves out its last tile", CONFORMANCE),
    (FORWARD, "until[r] = std::min(walk_.last_key(i) - g.key, g.count) - first;", "until[r] = walk_.last_key(i) - g.key;",
     "the end of the visible keys is taken from the wrong key", CONFORMANCE),
    (FORWARD, "if (!partial && p_.has(Option::sink))", "if (p_.has(Option::sink))",
     "a sink is merged once a split", CONFORMANCE),
    (FORWARD, "x[offset + k - keys.first] *= score.keep(", "x_.sum[panel * m_.rows + r] *= x[offset + k - keys.first] *= score.keep(",
     "dropout changes the sum that normalises", CONFORMANCE),
    (BACKWARD, "if (a.given(Role::d_lse)) delta -=", "if (a.given(Role::d_lse)) delta +=",
     "the gradient of lse has the wrong sign", CONFORMANCE),
    (BACKWARD, "ds[q] = d_logit * score.slope_of_logit(p[q]);", "ds[q] = d_logit;",
     "the slope of a softcap is left out", CONFORMANCE),
    (BACKWARD, "store_keys(Role::dk, keys, x_.dk, p_.dim_qk, dim_qk_, scale_);", "store_keys(Role::dk, keys, x_.dk, p_.dim_qk, dim_qk_, 1.f);",
     "dk lacks the scale", CONFORMANCE),
    (BACKWARD, "if (shares_keys(p_, a_)) {", "if (false) {",
     "gradients of a shared page overwrite each other", CONFORMANCE),
    (BACKWARD, "if (partial) m_.hide(x_.s, n, from, until, top);", "if (partial && from[0] > 0) m_.hide(x_.s, n, from, until, top);",
     "queries beyond a key's last one get gradients", CONFORMANCE),
    # Machines
    (SCALAR, "if (j < first[r] || j >= last[r]) x = -kInf;", "if (j < first[r] || j > last[r]) x = -kInf;",
     "scalar: hide leaves one key too many", KERNELS),
    (SCALAR, "ds[at] = p[at] * (dp[at] - delta[j]);", "ds[at] = p[at] * (dp[at] - delta[r]);",
     "scalar: delta of the wrong row", KERNELS),
    (NEON, "vandq_u32(vcgeq_s32(at, from), vcltq_s32(at, until))", "vandq_u32(vcgtq_s32(at, from), vcltq_s32(at, until))",
     "neon: hide hides the first visible key", KERNELS),
    (NEON, "best[i % 3] = vmaxq_f32(best[i % 3], acc[i / 3][i % 3]);", "best[i % 3] = acc[i / 3][i % 3];",
     "neon: the largest score of a row is the last one's", KERNELS),
    (NEON, "const float32x4_t pr = r < 4 ? p0 : r < 8 ? p1 : p2;", "const float32x4_t pr = r < 4 ? p0 : r < 9 ? p1 : p2;",
     "neon: row 8 is multiplied with the weights of row 4", KERNELS),
    (NEON, "j / kRows * panel + (at + r) * kRows + j % kRows", "j / kRows * panel + r * kRows + j % kRows",
     "neon: a transposed panel lands on the first", KERNELS),
]
